"""CBMLLoss against the equations, then over what PML's losses take."""

import pytest
import torch
from pytorch_metric_learning import distances, miners, reducers
from pytorch_metric_learning.losses import MultiSimilarityLoss
from pytorch_metric_learning.regularizers import LpRegularizer

from pml_ext.testing import check_component
from pml_ext_cbml import CBMLLoss, HardPairMiner

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


class TestEquations:
    def test_value_gradients_and_settings(self, slow):
        """Over batches, miners' tuples, references and settings; none of the settings is ignored."""

        def reference(embeddings, labels, indices_tuple=None, ref_emb=None, ref_labels=None, **settings):
            pairs = slow.pairs(labels, ref_labels) if indices_tuple is None else slow.pairs_of(indices_tuple)
            return slow.cbml(embeddings, pairs, ref_emb, **settings)

        check_component(CBMLLoss, reference=reference, settings=GRID, checks=["check_reference", "check_settings"])

    def test_both_mined_sets_empty(self):
        x = torch.eye(4, dtype=torch.float64)[[0, 0, 1, 1]].requires_grad_()
        labels = torch.tensor([0, 0, 1, 1])
        # The target is 0.2, the variance 0.2**2.
        for averaging, constant in (("log", 0.0), ("sqrt", 2.0), ("const", 2.0)):
            assert CBMLLoss(averaging=averaging)(x, labels).item() == pytest.approx(constant + 0.04)
            value = CBMLLoss(averaging=averaging, mvc_weight=0)(x, labels)
            assert value.item() == pytest.approx(constant)
            assert gradient(value, x).abs().max() == 0
            assert CBMLLoss(averaging=averaging, skip_unmined=True)(x, labels) == 0

    def test_anchors_without_positives_count_as_zero(self, slow):
        x, _ = slow.batch(rows=6)
        labels = torch.tensor([0, 0, 1, 1, 2, 3])
        for averaging in ("log", "sqrt", "const"):
            losses = CBMLLoss(averaging=averaging, reducer=reducers.DoNothingReducer())(x, labels)["loss"]["losses"]
            assert losses.shape == (6,)
            assert losses[4:].tolist() == [0.0, 0.0]
            assert (losses[:4] > 0).all()
            assert CBMLLoss(averaging=averaging)(x, labels).item() == pytest.approx(losses.sum().item() / 6)

    def test_equals_pml_multi_similarity(self, slow):
        x, labels = slow.batch(rows=30, size=8, classes=6)
        found = CBMLLoss(alpha_pos=0.5, beta_pos=1, alpha_neg=0.5, beta_neg=1, mvc_weight=0)(x, labels)
        pml, miner = MultiSimilarityLoss(alpha=1, beta=1, base=0.5), miners.MultiSimilarityMiner(0.1)
        expected = pml(x, labels, miner(x, labels))
        torch.testing.assert_close(found, expected, rtol=1e-14, atol=1e-14)
        torch.testing.assert_close(gradient(found, x), gradient(expected, x), rtol=1e-12, atol=1e-14)


class TestProperties:
    @pytest.mark.filterwarnings("ignore:Anomaly Detection")
    @pytest.mark.parametrize("averaging", ["log", "sqrt", "const"])
    @pytest.mark.parametrize(
        ("rows", "labels"),
        [(4, [0, 1, 2, 3]), (4, [5, 5, 5, 5]), (1, [0]), (0, []), (2, [1, 1])],
        ids=["no positives", "no negatives", "one sample", "none", "one pair"],
    )
    def test_degenerate_batches_backpropagate_zeros(self, averaging, rows, labels):
        for dtype in (torch.float32, torch.float16):
            x = torch.randn(rows, 3).to(dtype).requires_grad_()
            for settings in ({}, {"mining": False, "delta": "ratio"}):
                value = CBMLLoss(averaging=averaging, **settings)(x, torch.tensor(labels, dtype=torch.long))
                assert value.item() == 0
                assert value.dtype == torch.float32
                with torch.autograd.detect_anomaly(check_nan=True):
                    assert torch.equal(torch.autograd.grad(value, x)[0], torch.zeros_like(x))

    @pytest.mark.parametrize("averaging", ["log", "sqrt", "const"])
    def test_extreme_settings_do_not_overflow(self, averaging):
        x = (100 * torch.randn(12, 4, generator=torch.Generator().manual_seed(0))).requires_grad_()
        labels = torch.arange(12) % 3
        similarity = distances.DotProductSimilarity(normalize_embeddings=False)
        for settings in ({"distance": similarity}, {"beta_pos": 1e-4, "beta_neg": 1e-4, "alpha_neg": -1.0}):
            loss = CBMLLoss(averaging=averaging, mining=False, **settings)
            value = loss(x, labels)
            assert value.isfinite()
            assert gradient(value, x).isfinite().all()
            assert gradient(value, x).abs().max() > 0


class TestTuplesAndReferences:
    def test_empty_tuples(self, slow):
        x, labels = slow.batch()
        for length in (3, 4):
            value = CBMLLoss()(x, labels, (torch.tensor([], dtype=torch.long),) * length)
            assert value == 0
            assert gradient(value, x).abs().max() == 0

    def test_the_miner_before_the_loss(self, slow):
        x, labels = slow.batch(rows=20)
        mined = HardPairMiner()(x, labels)
        assert len(mined[0]) < (labels[:, None] == labels).sum() - 20
        for averaging in ("log", "sqrt"):
            found = CBMLLoss(mining=False, mvc_weight=0, averaging=averaging, reducer=reducers.SumReducer())(
                x, labels, mined
            )
            losses = CBMLLoss(mvc_weight=0, averaging=averaging, reducer=reducers.SumReducer(), skip_unmined=True)
            torch.testing.assert_close(found, losses(x, labels), **TIGHT)

    def test_the_batch_as_its_own_references(self, slow):
        x, labels = slow.batch()
        value = CBMLLoss()(x, labels)
        assert torch.equal(CBMLLoss()(x, labels, ref_emb=x, ref_labels=labels), value)
        half = x.detach().half()
        assert torch.equal(CBMLLoss()(half, labels, ref_emb=half, ref_labels=labels), CBMLLoss()(half, labels))

    def test_no_references_at_all(self, slow):
        x, labels = slow.batch()
        value = CBMLLoss()(x, labels, ref_emb=x.detach()[:0], ref_labels=labels[:0])
        assert value == 0
        assert gradient(value, x).abs().max() == 0


class TestPrecision:
    def test_sub_losses_are_not_summed_in_half_precision(self):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)).half()
        labels = torch.arange(8) // 2
        value = CBMLLoss(embedding_regularizer=LpRegularizer(), embedding_reg_weight=1000)(x, labels)
        assert value.dtype == torch.float32
        expected = CBMLLoss()(x, labels) + 1000 * x.float().norm(dim=1).mean()
        assert value.item() == pytest.approx(expected.item(), rel=1e-6)

    def test_mixed_dtypes_of_batch_and_references(self, slow):
        x, labels = slow.batch()
        value = CBMLLoss()(x.detach().half(), labels, ref_emb=x, ref_labels=labels)
        assert value.dtype == torch.float64


class TestInsidePML:
    def test_distances(self, slow):
        x, labels = slow.batch()
        dot = distances.DotProductSimilarity(normalize_embeddings=False)
        found = CBMLLoss(distance=dot, beta_neg=1.0)(x, labels)
        expected = slow.cbml(x, slow.pairs(labels), similarity=torch.dot, beta_neg=1.0)
        torch.testing.assert_close(found, expected, **TIGHT)
        torch.testing.assert_close(CBMLLoss(distance=distances.CosineSimilarity())(x, labels), CBMLLoss()(x, labels))
        for wrong in (distances.LpDistance(), distances.SNRDistance()):
            with pytest.raises(ValueError, match=f"CBMLLoss needs a similarity.*got distance={type(wrong).__name__}"):
                CBMLLoss(distance=wrong)
        with pytest.raises(TypeError, match="distance of CBMLLoss must be a distance of pytorch-metric-learning"):
            CBMLLoss(distance="cosine")

    def test_recorded_terms(self, slow):
        x, labels = slow.batch()
        loss = CBMLLoss(collect_stats=True, mvc_weight=0.5)
        value = loss(x, labels)
        expected = [sum(term[k] for term in slow.terms(x, slow.pairs(labels))) / 10 for k in range(3)]
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


class TestBadInput:
    @pytest.mark.parametrize(
        ("settings", "error", "text"),
        [
            ({"beta_pos": 0}, ValueError, "beta_pos of CBMLLoss must be a finite number above 0, not 0"),
            ({"beta_neg": -1.0}, ValueError, "beta_neg of CBMLLoss must be a finite number above 0, not -1.0"),
            ({"mvc_weight": -1}, ValueError, "mvc_weight of CBMLLoss must be a finite number at least 0, not -1"),
            ({"mvc_gamma": 1.5}, ValueError, "mvc_gamma .* at least 0 and at most 1, not 1.5"),
            ({"mvc_reduction": "max"}, ValueError, "mvc_reduction of CBMLLoss must be 'mean' or 'sum', not 'max'"),
            ({"averaging": "exp"}, ValueError, "averaging of CBMLLoss must be 'log' or 'sqrt' or 'const', not 'exp'"),
            (
                {"delta": "rate"},
                ValueError,
                "delta of CBMLLoss must be a finite number at least 0 or 'ratio', not 'rate'",
            ),
            ({"delta": -1}, ValueError, "delta of CBMLLoss .* not -1"),
            ({"epsilon": float("nan")}, ValueError, "epsilon of CBMLLoss must be a finite number, not nan"),
            ({"alpha_pos": "a"}, TypeError, "alpha_pos of CBMLLoss must be a finite number, not 'a'"),
            ({"alpha": 1}, TypeError, "alpha"),
        ],
    )
    def test_settings(self, settings, error, text):
        with pytest.raises(error, match=text):
            CBMLLoss(**settings)
