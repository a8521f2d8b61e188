"""Types of the names that users and plugin authors import; mypy and pyright read this file, nothing runs it."""

# mypy: warn-unused-ignores
# pyright: reportUnnecessaryTypeIgnoreComment=true, reportPrivateUsage=false

from typing import assert_type

import torch
from torch import Tensor

import pml_ext
import pml_ext.registry.components
import pml_ext_search
import pml_ext_train.data
from pml_ext import CBMLLoss
from pml_ext.plugin import Component, DataSplits, LabeledRegularizer, PairLoss, RunView
from pml_ext_cbml.losses import CBMLLoss as Defined

x = torch.randn(4, 2)
y = torch.arange(4)

assert_type(CBMLLoss(), Defined)
assert_type(pml_ext.CBMLLoss(), Defined)
assert_type(Component(CBMLLoss, "cbml"), pml_ext.registry.Component)
assert_type(pml_ext.load_run("run"), pml_ext_search.TrainedRun)

# Calls
loss = CBMLLoss(mining=False, tile_size=8, collect_stats=True, embedding_reg_weight=0.5)
assert_type(loss(x, y), Tensor)
assert_type(loss(x, y, pml_ext.HardPairMiner()(x, y), ref_emb=x, ref_labels=y), Tensor)
assert_type(pml_ext.HardPairMiner(collect_stats=True)(x, y), tuple[Tensor, ...])
assert_type(pml_ext.PDDMLoss(pml_ext.PDDMDistance(2))(x, y), Tensor)
assert_type(pml_ext.PDDMDistance(2)(x), Tensor)
assert_type(pml_ext.DensityRegularizer(4)(x, y), Tensor)
assert_type(pml_ext.RegularizedLoss(loss, pml_ext.DensityRegularizer(4))(x, y), Tensor)
assert_type(pml_ext.CrossBatchMemory(loss, 2)(x, y), Tensor)
assert_type(pml_ext.MultipleLosses([loss])(x, y), Tensor)
assert_type(pml_ext.DistributedLoss(loss)(x, y), Tensor)
assert_type(pml_ext.SelfSupervisedLoss(loss)(x, x), Tensor)
assert_type(pml_ext.SelfSupervisedLoss(loss)(x, [x, x]), Tensor)
assert_type(pml_ext.CachedGradients(torch.nn.Linear(2, 2), loss, 2)(x, y), Tensor)

# Settings that do not exist
CBMLLoss(nonsense=1)  # type: ignore[call-arg]
PairLoss(nonsense=1)  # type: ignore[call-arg]
pml_ext.AngularLoss(nonsense=1)  # type: ignore[call-arg]
pml_ext.SoftmaxLoss(3, 2, nonsense=1)  # type: ignore[call-arg]
pml_ext.PDDMLoss(pml_ext.PDDMDistance(2), nonsense=1)  # type: ignore[call-arg]
pml_ext.RegularizedLoss(loss, loss, nonsense=1)  # type: ignore[call-arg]
pml_ext.CrossBatchMemory(loss, 2, nonsense=1)  # type: ignore[call-arg]
pml_ext.HardPairMiner(nonsense=1)  # type: ignore[call-arg]
LabeledRegularizer(nonsense=1)  # type: ignore[call-arg]
CBMLLoss(tile_size="8")  # type: ignore[arg-type]

# Names that do not exist
from pml_ext import NoSuchLoss  # type: ignore[attr-defined]  # noqa: E402, F401


def of_a_run(run: RunView, splits: DataSplits) -> None:
    """The view of a run, and what needs an extra."""
    assert_type(run.embeddings("test"), Tensor)
    assert_type(splits, pml_ext_train.data.DataSplits)
