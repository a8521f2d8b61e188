"""CBMLLoss, HardPairMiner and MetricVarianceRegularizer against the equations, and over what PML's classes take."""

import pytest
import torch
from pytorch_metric_learning import distances, reducers

from pml_ext import CBMLLoss, HardPairMiner
from pml_ext.testing import check_component

from . import loops

TIGHT = {"rtol": 1e-9, "atol": 1e-9}
GRID = [
    {},
    {"alpha_pos": [0.5], "beta_pos": [0.25], "alpha_neg": [0.5], "beta_neg": [0.05], "mvc_weight": [0.001]},
    {"mvc_weight": [0.0]},
    {"mvc_reduction": ["mean", "sum"], "mvc_gamma": [0.7]},
    {"detach_target": [True], "mvc_weight": [3.0]},
    {"mining": [False], "alpha_neg": [0.3], "beta_neg": [0.2]},
    {"skip_unmined": [True], "epsilon": [-0.1]},
    {"epsilon": [0.4], "mvc_gamma": [1.0]},
    {"mvc_gamma": [0.0]},
    {
        "averaging": ["log", "sqrt", "const"],
        "delta": [1.0, 0.25, "ratio", 0.0],
        "mining": [True, False],
        "beta_neg": [0.1],
    },
    {"statistics": [[0.7, 0.2, 0.1, 0.3], [0.6, 0.4, 0.2, 0.25]], "delta": [1.0, "ratio"], "mining": [True, False]},
]


def gradient(value, x):
    return torch.autograd.grad(value, x, retain_graph=True)[0]


def test_value_and_gradients_for_all_settings():
    """Over batches, miners' tuples, references and settings; none of the settings is ignored."""

    def reference(embeddings, labels, indices_tuple=None, ref_emb=None, ref_labels=None, **settings):
        pairs = loops.pairs_from_labels(labels, ref_labels) if indices_tuple is None else loops.pairs_of(indices_tuple)
        return loops.cbml(embeddings, pairs, ref_emb, **settings)

    check_component(CBMLLoss, reference=reference, settings=GRID, checks=["check_reference", "check_settings"])


def test_a_batch_with_nothing_mined():
    x = torch.eye(4, dtype=torch.float64)[[0, 0, 1, 1]].requires_grad_()
    labels = torch.tensor([0, 0, 1, 1])
    # The target is 0.2, the variance 0.2**2.
    for averaging, constant in (("log", 0.0), ("sqrt", 2.0), ("const", 2.0)):
        assert CBMLLoss(averaging=averaging)(x, labels).item() == pytest.approx(constant + 0.04)
        value = CBMLLoss(averaging=averaging, mvc_weight=0)(x, labels)
        assert value.item() == pytest.approx(constant)
        assert gradient(value, x).abs().max() == 0
        assert CBMLLoss(averaging=averaging, skip_unmined=True)(x, labels) == 0


@pytest.mark.parametrize("averaging", ["log", "sqrt", "const"])
def test_extreme_settings_do_not_overflow(averaging):
    x = (100 * torch.randn(12, 4, generator=torch.Generator().manual_seed(0))).requires_grad_()
    labels = torch.arange(12) % 3
    similarity = distances.DotProductSimilarity(normalize_embeddings=False)
    for settings in ({"distance": similarity}, {"beta_pos": 1e-4, "beta_neg": 1e-4, "alpha_neg": -1.0}):
        loss = CBMLLoss(averaging=averaging, mining=False, **settings)
        value = loss(x, labels)
        assert value.isfinite()
        assert gradient(value, x).isfinite().all()
        assert gradient(value, x).abs().max() > 0


def test_the_miner_before_the_loss():
    x, labels = loops.batch(rows=20)
    mined = HardPairMiner()(x, labels)
    assert len(mined[0]) < (labels[:, None] == labels).sum() - 20
    for averaging in ("log", "sqrt"):
        found = CBMLLoss(mining=False, mvc_weight=0, averaging=averaging, reducer=reducers.SumReducer())(
            x, labels, mined
        )
        losses = CBMLLoss(mvc_weight=0, averaging=averaging, reducer=reducers.SumReducer(), skip_unmined=True)
        torch.testing.assert_close(found, losses(x, labels), **TIGHT)


def test_terms_are_recorded_after_a_call():
    x, labels = loops.batch()
    loss = CBMLLoss(collect_stats=True, mvc_weight=0.5)
    value = loss(x, labels)
    expected = [sum(term[k] for term in loops.anchor_terms(x, loops.pairs_from_labels(labels))) / 10 for k in range(3)]
    for name, wanted in zip(("positive_loss", "negative_loss", "variance_loss"), expected, strict=True):
        found = getattr(loss, name)
        torch.testing.assert_close(found, wanted.detach(), **TIGHT)
        assert not found.requires_grad
        assert name in loss._record_these_stats
    total = loss.positive_loss + loss.negative_loss + 0.5 * loss.variance_loss
    torch.testing.assert_close(total, value.detach(), **TIGHT)
    assert not loss.state_dict()
    silent = CBMLLoss()
    silent(x, labels)
    assert not hasattr(silent, "positive_loss")
