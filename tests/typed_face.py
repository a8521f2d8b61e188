"""What type checkers must know of the names that users and plugin authors import; mypy reads it, nothing runs it."""

from typing import assert_type

from torch import Tensor

import pml_ext.components
import pml_ext.data
import pml_ext.retrieval
from pml_ext import CBMLLoss, Component, load_run
from pml_ext.plugin import DataSplits, RunView
from pml_ext_cbml.losses import CBMLLoss as Defined

assert_type(CBMLLoss(), Defined)
assert_type(pml_ext.CBMLLoss(), Defined)
assert_type(Component(CBMLLoss, "cbml"), pml_ext.components.Component)
assert_type(load_run("run"), pml_ext.retrieval.TrainedRun)


def of_a_run(run: RunView, splits: DataSplits) -> None:
    """The view of a run, and what needs an extra."""
    assert_type(run.embeddings("test"), Tensor)
    assert_type(splits, pml_ext.data.DataSplits)
