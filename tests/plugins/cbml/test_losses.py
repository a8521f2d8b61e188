"""CBMLLoss against the equations, then over what PML's losses take."""

import copy
import pickle
import sqlite3

import pytest
import torch
from pytorch_metric_learning import distances, miners, reducers
from pytorch_metric_learning.losses import MultipleLosses, MultiSimilarityLoss
from pytorch_metric_learning.regularizers import LpRegularizer
from torch.autograd import gradcheck, gradgradcheck

from pml_ext.testing import check_component
from pml_ext_cbml import CBMLLoss, HardPairMiner
from pml_ext_cbml.peers import loop_over_anchors

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


def all_pairs(labels, ref_labels):
    same = labels[:, None] == ref_labels[None]
    return (*torch.where(same), *torch.where(~same))


class TestEquations:
    def test_value_gradients_and_settings(self, slow):
        """Over batches, miners' tuples, references and settings; none of the settings is ignored."""

        def reference(embeddings, labels, indices_tuple=None, ref_emb=None, ref_labels=None, **settings):
            pairs = slow.pairs(labels, ref_labels) if indices_tuple is None else slow.pairs_of(indices_tuple)
            return slow.cbml(embeddings, pairs, ref_emb, **settings)

        check_component(CBMLLoss, reference=reference, settings=GRID, checks=["check_reference", "check_settings"])

    @pytest.mark.parametrize(
        "settings",
        [
            {},
            {"mvc_weight": 0.0},
            {"alpha_pos": 0.5, "beta_pos": 0.25, "alpha_neg": 0.5, "beta_neg": 0.05},
            *(
                {"averaging": "const", "delta": delta, "mining": mining, "beta_neg": 0.1}
                for delta in (0.25, "ratio", 0.0)
                for mining in (True, False)
            ),
        ],
        ids=str,
    )
    def test_gradcheck(self, slow, settings):
        x, labels = slow.batch(rows=7)
        assert gradcheck(lambda e: CBMLLoss(**settings)(e, labels), x)
        assert gradgradcheck(lambda e: CBMLLoss(**{"beta_neg": 0.1, **settings})(e, labels), x)

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

    def test_the_loop_that_it_is_measured_against(self, slow):
        x, labels = slow.batch(rows=20)
        torch.testing.assert_close(CBMLLoss()(x, labels), loop_over_anchors()(x, labels), **TIGHT)


class TestProperties:
    def test_permutations_and_lengths_change_nothing(self, slow):
        x, labels = slow.batch(rows=16)
        order = torch.randperm(16, generator=torch.Generator().manual_seed(3))
        value = CBMLLoss()(x, labels)
        torch.testing.assert_close(CBMLLoss()(x[order], labels[order]), value, **TIGHT)
        torch.testing.assert_close(CBMLLoss()(x * torch.linspace(0.1, 9, 16)[:, None], labels), value, **TIGHT)
        torch.testing.assert_close(CBMLLoss()(x, labels * 1000 - 7), value, **TIGHT)

    def test_exact_duplicates_are_positives_like_any_other(self, slow):
        x, labels = slow.batch(rows=8)
        x, labels = torch.cat([x, x[:3]]).detach().requires_grad_(), torch.cat([labels, labels[:3]])
        found, expected = CBMLLoss()(x, labels), slow.cbml(x, slow.pairs(labels))
        torch.testing.assert_close(found, expected, **TIGHT)
        torch.testing.assert_close(gradient(found, x), gradient(expected, x), **TIGHT)

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

    @pytest.mark.filterwarnings("ignore:Anomaly Detection")
    @pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
    def test_collapsed_and_zero_embeddings_give_finite_gradients(self, dtype):
        labels = torch.tensor([0, 0, 1, 1])
        for x in (torch.ones(4, 3), torch.zeros(4, 3), torch.eye(4)[:, :3], torch.full((4, 3), 1e-7)):
            x = x.to(dtype).requires_grad_()
            for averaging in ("log", "sqrt", "const"):
                value = CBMLLoss(averaging=averaging)(x, labels)
                with torch.autograd.detect_anomaly(check_nan=True):
                    value.backward()
                assert value.isfinite()
                assert x.grad.isfinite().all()

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

    def test_nan_is_not_hidden(self, slow):
        x, labels = slow.batch()
        x = x.detach().clone()
        x[3, 1] = torch.nan
        for weight in (1.0, 0.0):
            assert CBMLLoss(mvc_weight=weight)(x, labels).isnan()


class TestTuplesAndReferences:
    @pytest.mark.parametrize("mining", [True, False])
    def test_pairs_of_a_tuple_of_four(self, slow, mining):
        x, labels = slow.batch(rows=12)
        indices = HardPairMiner(epsilon=0.0)(x, labels)
        indices = tuple(torch.cat([index, index[:2]]) for index in indices)  # some pairs twice
        found = CBMLLoss(mining=mining)(x, labels, indices)
        expected = slow.cbml(x, slow.pairs_of(indices), mining=mining)
        torch.testing.assert_close(found, expected, **TIGHT)
        torch.testing.assert_close(gradient(found, x), gradient(expected, x), **TIGHT)
        assert not torch.allclose(found, CBMLLoss(mining=mining)(x, labels))
        torch.testing.assert_close(CBMLLoss(mining=mining)(x, None, indices), found)

    @pytest.mark.parametrize(
        "miner",
        [
            miners.TripletMarginMiner(margin=0.2, type_of_triplets="all"),
            miners.BatchHardMiner(),
            miners.MultiSimilarityMiner(),
            miners.PairMarginMiner(),
            miners.BatchEasyHardMiner(),
            miners.AngularMiner(angle=10),
        ],
        ids=lambda miner: type(miner).__name__,
    )
    def test_tuples_of_pml_miners(self, slow, miner):
        x, labels = slow.batch(rows=12)
        indices = miner(x, labels)
        assert len(indices[0]) > 0
        found, expected = CBMLLoss()(x, labels, indices), slow.cbml(x, slow.pairs_of(indices))
        torch.testing.assert_close(found, expected, **TIGHT)

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

    def test_references(self, slow):
        x, labels = slow.batch(rows=6)
        references, ref_labels = slow.batch(rows=9, seed=4)
        found = CBMLLoss()(x, labels, ref_emb=references, ref_labels=ref_labels)
        expected = slow.cbml(x, slow.pairs(labels, ref_labels), references)
        torch.testing.assert_close(found, expected, **TIGHT)
        for tensor in (x, references):
            torch.testing.assert_close(gradient(found, tensor), gradient(expected, tensor), **TIGHT)

    def test_references_that_hold_the_batch(self, slow):
        """A memory: the tuple alone keeps an embedding from its own copy."""
        x, labels = slow.batch(rows=6)
        older, older_labels = slow.batch(rows=5, seed=4)
        memory, memory_labels = torch.cat([older, x]).detach(), torch.cat([older_labels, labels])
        a1, p, a2, n = all_pairs(labels, memory_labels)
        kept = p != a1 + 5
        indices = (a1[kept], p[kept], a2, n)
        found = CBMLLoss()(x, labels, indices, memory, memory_labels)
        torch.testing.assert_close(found, slow.cbml(x, slow.pairs_of(indices), memory), **TIGHT)
        with_copies = CBMLLoss()(x, labels, None, memory, memory_labels)
        torch.testing.assert_close(with_copies, slow.cbml(x, slow.pairs(labels, memory_labels), memory), **TIGHT)
        assert not torch.allclose(found, with_copies)

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
    @pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-5), (torch.float16, 2e-2), (torch.bfloat16, 1e-1)])
    def test_dtypes(self, slow, dtype, close):
        x, labels = slow.batch(rows=16, size=8)
        low = x.detach().to(dtype).requires_grad_()
        value = CBMLLoss()(low, labels)
        assert value.dtype == torch.float32
        exact = CBMLLoss()(low.detach().double(), labels)
        assert value.item() == pytest.approx(exact.item(), rel=1e-5)
        assert value.item() == pytest.approx(CBMLLoss()(x, labels).item(), rel=close)
        assert gradient(value, low).dtype == dtype
        assert CBMLLoss()(x, labels).dtype == torch.float64

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_autocast(self, slow, dtype):
        x, labels = slow.batch(rows=16, size=8)
        x = x.detach().float().requires_grad_()
        with torch.autocast("cpu", dtype=dtype):
            value = CBMLLoss(embedding_regularizer=LpRegularizer())(x, labels)
            low = CBMLLoss()((x @ torch.eye(8)), labels)
        assert value.dtype == low.dtype == torch.float32
        assert torch.equal(value, CBMLLoss(embedding_regularizer=LpRegularizer())(x, labels))
        assert gradient(value, x).dtype == torch.float32

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
    @pytest.mark.parametrize(
        "reducer",
        [
            reducers.MeanReducer(),
            reducers.SumReducer(),
            reducers.AvgNonZeroReducer(),
            reducers.ThresholdReducer(low=0.5),
            reducers.PerAnchorReducer(),
            reducers.DivisorReducer(),
            reducers.ClassWeightedReducer(torch.tensor([1.0, 2, 3])),
        ],
        ids=lambda reducer: type(reducer).__name__,
    )
    def test_reducers(self, slow, reducer):
        x, labels = slow.batch(rows=12)
        labels[0] = 0
        found = CBMLLoss(reducer=reducer)(x, labels)
        terms = torch.stack([p + n + v for p, n, v in slow.terms(x, slow.pairs(labels))])
        expected = {
            "SumReducer": terms.sum(),
            "AvgNonZeroReducer": terms[terms > 0].mean(),
            "ThresholdReducer": terms[terms > 0.5].mean(),
            "ClassWeightedReducer": (terms * (labels + 1)).mean(),
        }.get(type(reducer).__name__, terms.mean())
        torch.testing.assert_close(found, expected, **TIGHT)

    def test_do_nothing_reducer(self, slow):
        x, labels = slow.batch()
        info = CBMLLoss(reducer=reducers.DoNothingReducer())(x, labels)["loss"]
        assert info["reduction_type"] == "element"
        assert info["indices"].tolist() == list(range(10))

    def test_embedding_regularizer(self, slow):
        x, labels = slow.batch()
        found = CBMLLoss(embedding_regularizer=LpRegularizer(), embedding_reg_weight=0.3)(x, labels)
        torch.testing.assert_close(found, CBMLLoss()(x, labels) + 0.3 * x.norm(dim=1).mean(), **TIGHT)

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

    def test_multiple_losses(self, slow):
        x, labels = slow.batch()
        both = MultipleLosses([CBMLLoss(), MultiSimilarityLoss()], weights=[2, 1])
        torch.testing.assert_close(both(x, labels), 2 * CBMLLoss()(x, labels) + MultiSimilarityLoss()(x, labels))

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

    def test_record_keeper_has_the_curves(self, slow, tmp_path):
        torch.manual_seed(0)
        logging_presets = pytest.importorskip("pytorch_metric_learning.utils.logging_presets")
        pytest.importorskip("record_keeper")
        pytest.importorskip("tensorboard")
        from pytorch_metric_learning.trainers import MetricLossOnly

        x, labels = slow.batch(rows=24)
        data = torch.utils.data.TensorDataset(x.detach().float(), labels)
        keeper, _, _ = logging_presets.get_record_keeper(str(tmp_path / "csv"), str(tmp_path / "tensorboard"))
        hooks = logging_presets.get_hook_container(keeper, log_freq=1)
        loss = CBMLLoss(collect_stats=True)
        trunk = torch.nn.Linear(4, 4)
        MetricLossOnly(
            models={"trunk": trunk, "embedder": torch.nn.Identity()},
            optimizers={"trunk_optimizer": torch.optim.SGD(trunk.parameters(), lr=0.1)},
            batch_size=8,
            loss_funcs={"metric_loss": loss},
            dataset=data,
            dataloader_num_workers=0,
            end_of_iteration_hook=hooks.end_of_iteration_hook,
        ).train(num_epochs=1)
        keeper.save_records()
        tables = {}
        for path in tmp_path.glob("csv/*.db"):
            with sqlite3.connect(path) as connection:
                for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'").fetchall():
                    columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
                    tables[table] = [
                        dict(zip(columns, row, strict=True)) for row in connection.execute(f'SELECT * FROM "{table}"')
                    ]
        recorded = next(rows for table, rows in tables.items() if rows and "positive_loss" in rows[0])
        assert len(recorded) == 3
        assert [row["negative_loss"] > 0 for row in recorded] == [True] * 3
        assert float(recorded[-1]["variance_loss"]) == pytest.approx(loss.variance_loss.item(), rel=1e-5)

    def test_capabilities(self):
        assert CBMLLoss.capabilities == {"labels", "indices_tuple", "references"}


class TestModule:
    def test_pickle_deepcopy_and_state_dict(self, slow):
        x, labels = slow.batch()
        loss = CBMLLoss(averaging="sqrt", delta="ratio", mvc_weight=0.1, collect_stats=True)
        value = loss(x, labels)
        for twin in (pickle.loads(pickle.dumps(loss)), copy.deepcopy(loss)):
            assert torch.equal(twin(x, labels), value)
        other = CBMLLoss(averaging="sqrt", delta="ratio", mvc_weight=0.1)
        other.load_state_dict(loss.state_dict())
        assert torch.equal(other(x, labels), value)
        assert "averaging='sqrt'" in repr(loss)
        assert not list(loss.parameters())

    @pytest.mark.skipif(torch.__version__ < "2.5", reason="torch 2.4 breaks the graph at PML's shape check")
    def test_compiles_into_one_graph(self, slow):
        x, labels = slow.batch(rows=12)
        x = x.detach().float().requires_grad_()
        for settings, indices in (({}, None), ({"delta": "ratio", "averaging": "sqrt"}, HardPairMiner(0.3)(x, labels))):
            loss = CBMLLoss(**settings)
            compiled = torch.compile(CBMLLoss(**settings), backend="aot_eager", fullgraph=True)
            value, expected = compiled(x, labels, indices), loss(x, labels, indices)
            torch.testing.assert_close(value, expected)
            torch.testing.assert_close(torch.autograd.grad(value, x)[0], gradient(expected, x))

    def test_nothing_waits_for_the_device(self, slow, monkeypatch):
        """On the meta device there are no values, so whatever reads one fails."""
        x, labels = slow.batch()
        indices = HardPairMiner()(x, labels)
        for name in ("item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "nonzero"):
            monkeypatch.setattr(
                torch.Tensor, name, lambda *_, name=name, **__: pytest.fail(f"Tensor.{name} was called")
            )
        for settings in ({}, {"delta": "ratio", "averaging": "const", "skip_unmined": True, "collect_stats": True}):
            CBMLLoss(**settings)(x, labels).backward()
            CBMLLoss(**settings)(x, labels, indices).backward()
        meta = torch.empty(6, 4, device="meta", requires_grad=True)
        CBMLLoss()(meta, torch.empty(6, device="meta", dtype=torch.long)).backward()
        assert meta.grad.shape == (6, 4)

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
    def test_cuda(self, slow):
        x, labels = slow.batch(rows=16, size=8)
        expected = CBMLLoss()(x, labels)
        on_gpu = x.detach().cuda().requires_grad_()
        value = CBMLLoss()(on_gpu, labels)  # labels follow the embeddings
        torch.testing.assert_close(value.cpu(), expected, **TIGHT)
        torch.testing.assert_close(gradient(value, on_gpu).cpu(), gradient(expected, x), **TIGHT)
        with torch.autocast("cuda", dtype=torch.float16):
            assert CBMLLoss()(on_gpu.half(), labels.cuda()).dtype == torch.float32
        single, labels = on_gpu.detach().float().requires_grad_(), labels.cuda()
        loss, indices = CBMLLoss(), HardPairMiner()(single, labels)
        loss(single, labels, indices).backward()
        torch.cuda.set_sync_debug_mode("error")
        try:
            loss(single, labels).backward()
            loss(single, labels, indices).backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")


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

    def test_batches(self):
        x, labels = torch.randn(4, 3), torch.arange(4)
        with pytest.raises(ValueError, match=r"two dimensions, \(batch size, embedding size\); got .* \(4,\)"):
            CBMLLoss()(x[:, 0], labels)
        with pytest.raises(ValueError, match=r"two dimensions.* \(4, 3, 1\)"):
            CBMLLoss()(x[..., None], labels)
        with pytest.raises(ValueError, match=r"labels must have shape \(4,\).*got a tensor of shape \(3,\)"):
            CBMLLoss()(x, labels[:3])
        with pytest.raises(TypeError, match=r"labels must be a tensor of integers.*got a list of length 4"):
            CBMLLoss()(x, [0, 0, 1, 1])
        with pytest.raises(TypeError, match=r"labels must be a tensor of integers.*torch\.float32"):
            CBMLLoss()(x, labels.float())
        with pytest.raises(ValueError, match="labels must be given where no indices_tuple is"):
            CBMLLoss()(x)
        with pytest.raises(ValueError, match="ref_labels must be given where no indices_tuple is"):
            CBMLLoss()(x, labels, ref_emb=torch.randn(5, 3))
        with pytest.raises(ValueError, match="three index tensors"):
            CBMLLoss()(x, labels, (labels, labels))
