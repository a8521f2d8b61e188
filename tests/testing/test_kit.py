"""The conformance kit: our own components pass; expected failures, targets and messages of the checks."""

import functools
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from pytorch_metric_learning import distances, losses, miners, reducers, regularizers, samplers

import pml_ext
from pml_ext import registry
from pml_ext.plugin import per_anchor
from pml_ext.testing import check_component, parametrize_with_checks
from tests.testing.planted import FewClasses, failing


def ours():
    """Every registered component of the core and of the plugins, built where it needs settings."""
    registered = [each for each in registry.components() if each.plugin != registry.LOCAL and each.name[:4] != "pml/"]
    return [
        *[each for each in registered if each.name not in ("regularized", "anchor-swap", "tree")],
        pml_ext.AnchorSwapMiner(miners.TripletMarginMiner(margin=1)),
        pml_ext.RegularizedLoss(losses.ContrastiveLoss(), pml_ext.MetricVarianceRegularizer(), weight=0.5),
        pml_ext.MultipleLosses({"contrastive": losses.ContrastiveLoss(), "cbml": pml_ext.CBMLLoss()}),
        pml_ext.reducers.SumOverDivisorReducer(),
        pml_ext.distances.EuclideanDistance(),
        pml_ext.distances.GramCosineSimilarity(),
    ]


EXPECTED = {
    "RegularizedLoss": {"check_reducers": "its two parts are reduced by their own reducers"},
    "MultipleLosses": {"check_dtypes": "PML's Lp distance takes torch.cdist, which has no half precision on a CPU"},
}
ONE_GRAPH = {
    *("cbml", "metric-variance", "density", "angular", "n-pair", "n-pair-angular", "batch-all-triplets"),
    *("tiled-contrastive", "tiled-multi-similarity", "tiled-nt-xent", "tiled-sup-con"),
}


@parametrize_with_checks(ours(), expected_failed_checks=lambda component: EXPECTED.get(type(component).__name__, {}))
def test_our_own_components_pass_all_checks(component, check):
    if check.__name__ == "check_compile" and getattr(component, "name", "") in ONE_GRAPH:
        (result,) = check_component(component, checks=["check_compile"])
        assert result.text == "one graph"
    else:
        check(component)


class PerProxy(losses.ProxyAnchorLoss):
    """A loss with a value per class, whose indices are those of the classes."""

    capabilities = frozenset({"labels"})

    def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        near = torch.nn.functional.normalize(embeddings) @ torch.nn.functional.normalize(self.proxies).T
        of_class = torch.nn.functional.one_hot(labels, self.num_classes)
        return per_anchor((of_class * (1 - near) + (1 - of_class) * near.clamp(min=0)).sum(0))

    def _sub_loss_names(self):
        return ["loss"]


class Quantile(reducers.BaseReducer):
    """A reducer whose value is finite where a few of its values are not."""

    def element_reduction(self, losses, *_):
        return torch.quantile(losses, 0.75)

    pos_pair_reduction = neg_pair_reduction = triplet_reduction = element_reduction


class AssertsSizes(FewClasses):
    """A sampler that refuses small classes by an assertion, as many do."""

    def __init__(self, labels, batch_size, length_before_new_iter, seed: int = 0):
        assert torch.as_tensor(labels).unique(return_counts=True)[1].min() >= 4
        super().__init__(labels, batch_size, length_before_new_iter, seed)


RIGHT = {
    "per proxy": (PerProxy, ["check_reducers", "check_indices_belong_to_values", "check_classes_separate"]),
    "asymmetric": (distances.SNRDistance, ["check_distance"]),
    "ties": (miners.HDCMiner, ["check_order_does_not_matter", "check_sizes"]),
    "proxy anchor": (losses.ProxyAnchorLoss, ["check_indices_belong_to_values"]),
    "constants": (losses.CircleLoss, ["check_gradients"]),
    "rows of weights": (
        functools.partial(regularizers.SparseCentersRegularizer, centers_per_class=4),
        ["check_call_forms", "check_degenerate_batches", "check_sizes", "check_gradients"],
    ),
    "weight per class": (reducers.ClassWeightedReducer(torch.ones(6)), ["check_inputs_unchanged", "check_sizes"]),
    "no triplets": (reducers.PerAnchorReducer, ["check_reducer"]),
    "quantile": (Quantile, ["check_nan_shows", "check_reducer"]),
    "packaged": (miners.EmbeddingsAlreadyPackagedAsTriplets, ["check_mined_indices", "check_degenerate_batches"]),
    "not reduced": (reducers.DoNothingReducer, ["check_reducer", "check_modes"]),
    "many labels": (
        functools.partial(FewClasses, labels=[number // 5 for number in range(60)]),
        ["check_sampler", "check_sampler_state"],
    ),
    "a large batch": (
        functools.partial(FewClasses, labels=[number // 10 for number in range(200)], batch_size=32),
        ["check_sampler"],
    ),
    "as many classes as numbers": (
        pml_ext.SoftmaxLoss(num_classes=8, embedding_size=8),
        ["check_names_of_classes"],
    ),
    "lists classes": (samplers.MPerClassSampler([0, 1, 2, 3] * 8, 2, 8, 32), ["check_sampler"]),
    "triplets": (pml_ext.HardNegativePoolSampler, ["check_sampler"]),
    "refuses small classes": (AssertsSizes, ["check_sampler", "check_sampler_seed"]),
    "PML's loss beside a regularizer": (
        losses.ContrastiveLoss(embedding_regularizer=regularizers.LpRegularizer()),
        ["check_call_forms", "check_reducers"],
    ),
    "a regularizer of weights": (
        losses.ArcFaceLoss(6, 8, weight_regularizer=regularizers.RegularFaceRegularizer()),
        ["check_call_forms", "check_reducers"],
    ),
    "our loss beside a regularizer": (
        pml_ext.CBMLLoss(embedding_regularizer=regularizers.LpRegularizer(), embedding_reg_weight=0.5),
        ["check_call_forms", "check_reducers"],
    ),
}


@pytest.mark.parametrize(("component", "checks"), RIGHT.values(), ids=RIGHT)
def test_right_ones_raise_no_false_alarm(component, checks):
    assert failing(component, checks=checks) == {}


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("contrastive", {"neg_margin": 0.05, "pos_margin": 0.3}),
        ("triplet-margin", {"margin": 0.001}),
        ("intra-pair-variance", {"pos_eps": 0.3, "neg_eps": 0.3}),
        ("lifted-structure", {"neg_margin": 0.05}),
    ],
)
def test_settings_of_pmls_losses_raise_no_false_alarm(name, table):
    """None but those that the loss fails with its default settings."""
    known = tomllib.loads((Path(__file__).parent / "pml_failures.toml").read_text())[name]
    loss = functools.partial(registry.get(f"pml/{name}", "loss").cls, **table)
    assert failing(loss, fast=True).keys() <= {f"check_{check}" for check in known}


_WITHOUT_HEAVY_IMPORTS = """
import sys
from pytorch_metric_learning.losses import MultiSimilarityLoss
from pml_ext.testing import check_component
check_component(MultiSimilarityLoss, on_fail=None, checks=["check_gradients", "check_devices", "check_memory_growth"])
assert not {"torch._dynamo", "torch.utils.cpp_extension", "sklearn"} & {*sys.modules}
"""


def test_checks_but_the_compilers_import_no_compiler():
    subprocess.run([sys.executable, "-c", _WITHOUT_HEAVY_IMPORTS], check=True, cwd=Path(__file__).parents[2])
