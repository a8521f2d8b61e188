"""CBMLLoss, its statistics, miner, regularizer and classifier, against slow forms of the equations."""

import dataclasses
import functools
import json
import math

import pytest
import torch
from pytorch_metric_learning import distances, miners, reducers
from pytorch_metric_learning.distances import CosineSimilarity, DotProductSimilarity

from pml_ext import CBMLLoss, HardPairMiner, MetricVarianceRegularizer, PDDMDistance, SoftmaxLoss, load_run
from pml_ext.errors import ConfigError, TrainingWarning
from pml_ext.pairwise import indicators
from pml_ext.testing import check_component
from pml_ext_cbml import functional
from pml_ext_cbml.statistics import PairStatistics, likelihood_ratio_figure
from pml_ext_train.launch.launch import train

from ...overrides import typed
from . import loops

X, LABELS = loops.batch()
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
        value = CBMLLoss(averaging=averaging, mining=False, **settings)(x, labels)
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
    loss = CBMLLoss(collect_stats=True, mvc_weight=0.5)
    value = loss(X, LABELS)
    expected = [sum(term[k] for term in loops.anchor_terms(X, loops.pairs_from_labels(LABELS))) / 10 for k in range(3)]
    for name, wanted in zip(("positive_loss", "negative_loss", "variance_loss"), expected, strict=True):
        found = getattr(loss, name)
        torch.testing.assert_close(found, wanted.detach(), **TIGHT)
        assert not found.requires_grad
        assert name in loss._record_these_stats
    total = loss.positive_loss + loss.negative_loss + 0.5 * loss.variance_loss
    torch.testing.assert_close(total, value.detach(), **TIGHT)
    assert not loss.state_dict()
    silent = CBMLLoss()
    silent(X, LABELS)
    assert not hasattr(silent, "positive_loss")


@pytest.mark.parametrize("epsilon", [0.1, 0.0, 0.5, -0.1])
@pytest.mark.parametrize("distance", [None, distances.LpDistance(), distances.DotProductSimilarity()])
def test_the_miner_finds_the_pairs_of_pml(epsilon, distance):
    """In the order of their rows."""
    for seed in range(3):
        x, labels = loops.batch(rows=40, size=6, classes=7, seed=seed)
        found = HardPairMiner(epsilon, distance=distance)(x, labels)
        theirs = miners.MultiSimilarityMiner(epsilon, distance=distance or distances.CosineSimilarity())(x, labels)
        for side in (slice(2), slice(2, 4)):
            mine, wanted = (list(zip(*(i.tolist() for i in each[side]), strict=True)) for each in (found, theirs))
            assert mine == sorted(wanted)


def test_the_regularizer_is_equation_29():
    def reference(embeddings, labels, gamma=0.2, reduction="mean", detach_target=False):
        settings = {"mvc_gamma": gamma, "mvc_reduction": reduction, "detach_target": detach_target}
        terms = loops.anchor_terms(embeddings, loops.pairs_from_labels(labels), **settings)
        return sum(variance for _, _, variance in terms) / len(labels)

    settings = {"reduction": ["mean", "sum"], "gamma": [0.0, 0.2, 1.0], "detach_target": [False, True]}
    checks = ["check_reference", "check_settings"]
    check_component(MetricVarianceRegularizer, reference=reference, settings=settings, checks=checks)


def slow_softmax(embeddings, labels, component, class_labels=None):
    weight = component.classifier.weight.double()
    bias = component.classifier.bias.double()
    classes = list(range(component.num_classes)) if class_labels is None else list(class_labels)
    total = 0 * embeddings.sum()
    for x, label in zip(embeddings, labels.tolist(), strict=True):
        logits = [(w * x).sum() + b for w, b in zip(weight, bias, strict=True)]
        total = total - logits[classes.index(label)] + sum(torch.exp(value) for value in logits).log()
    return total / len(embeddings)


def test_softmax_loss_equals_a_slow_loop():
    settings = [{"class_labels": [None, [3, 1, 0, 2, 9, 8, 7, 6, 5, 4]]}]
    checks = ["check_reference", "check_settings"]
    check_component(SoftmaxLoss, reference=slow_softmax, settings=settings, num_classes=10, checks=checks)


@pytest.mark.usefixtures("without_report")
def test_the_trunks_features_are_tested(tmp_path):
    quick = [f"schedule.{each}" for each in ("epochs=2", "milestones=[1]")] + [
        "sampler.iterations=3",
        "loss.name=softmax",
    ]
    quick += ["model.trunk={name='convnet', width=8, blocks=2}", "evaluation.baselines=false", "model.embedder=none"]
    run = functools.partial(train, "cbml/digits", device="cpu")
    with pytest.raises(ConfigError, match="wanted embedding_size = (?P<features>[0-9]+), not 5") as refused:
        run(out=tmp_path / "refused", overrides=typed((*quick, "model.embedding_size=5")))
    size = int(str(refused.value).rpartition("embedding_size = ")[2].partition(",")[0])
    out = tmp_path / "out"
    run(out=out, overrides=typed((*quick, f"model.embedding_size={size}")))
    state = torch.load(out / "checkpoints" / "model.pt", weights_only=True)
    assert state["embedder"] == {}
    assert state["loss"]["classifier.weight"].shape[1] == size
    assert json.loads((out / "network.json").read_text())["features"] == size
    assert load_run(out).embed(list(torch.randint(0, 255, (2, 1, 8, 8), dtype=torch.uint8))).shape == (2, size)


KNOWN = PairStatistics(mean_pos=0.7, std_pos=0.15, mean_neg=0.2, std_neg=0.12, num_pos=7, num_neg=112)


def test_statistics_of_a_batch_equal_loops():
    similarity = torch.nn.functional.cosine_similarity(X[:, None].detach(), X[None].detach(), dim=-1)
    pairs = [(i, j) for i in range(10) for j in range(10) if i != j]
    positive = [float(similarity[i, j]) for i, j in pairs if LABELS[i] == LABELS[j]]
    negative = [float(similarity[i, j]) for i, j in pairs if LABELS[i] != LABELS[j]]
    known = PairStatistics.of(X, LABELS)
    for values, mean, std, number in (
        (positive, known.mean_pos, known.std_pos, known.num_pos),
        (negative, known.mean_neg, known.std_neg, known.num_neg),
    ):
        middle = sum(values) / len(values)
        assert mean == pytest.approx(middle, rel=1e-9)
        assert std == pytest.approx(math.sqrt(sum((v - middle) ** 2 for v in values) / len(values)), rel=1e-9)
        assert number == pytest.approx(len(values) / 10)


def test_centers_and_widths_of_section_4_4_f():
    loss = CBMLLoss.from_statistics(KNOWN, mvc_weight=0.5)
    delta_pos = 112 / 7**2
    delta_neg = 7 / 112**2
    assert loss.alpha_pos == loss.alpha_neg == pytest.approx(0.45)
    assert loss.alpha_pos / loss.beta_pos == pytest.approx((0.7**2 - 0.2**2) / (2 * 0.15**2) + math.log(delta_pos))
    assert loss.alpha_neg / loss.beta_neg == pytest.approx((0.7**2 - 0.2**2) / (2 * 0.12**2) - math.log(delta_neg))
    assert (loss.delta, loss.mvc_weight) == (1.0, 0.5)
    quadratic = CBMLLoss.from_statistics(KNOWN, exponent="quadratic")
    assert (quadratic.statistics, quadratic.delta) == ((0.7, 0.15, 0.2, 0.12), "ratio")


def test_ratio_functions_as_a_figure():
    """The line is Eq. (20) of the panel's own statistics; a part without negative pairs has a note."""
    x, labels = loops.batch(rows=120, near=1.5)
    figure = likelihood_ratio_figure({"training": (x, labels), "one class": (x.detach() + 0.1, torch.zeros(120))})
    lines = {line.get_label(): line for line in figure.axes[1].get_lines()}
    assert set(lines) == {"ratio of the two", "Eq. 20"}
    known = PairStatistics.of(x, labels)
    z, heights = map(torch.tensor, lines["Eq. 20"].get_data())
    wanted = functional.log_ratio(z, known.mean_pos, known.std_pos, known.mean_neg, known.std_neg).exp()
    torch.testing.assert_close(heights, wanted)
    assert "needs at least one positive" in figure.axes[3].get_title()


@pytest.mark.parametrize("count", range(3, 12))
def test_equal_similarities_of_a_kind_have_no_deviation(count):
    generator = torch.Generator().manual_seed(count)
    same = torch.randn(1, 5, generator=generator).expand(count, 5)
    others = torch.randn(4, 5, generator=generator)
    labels = torch.tensor([0] * count + [1, 2, 3, 4])
    with pytest.raises(ValueError, match="std_pos"):
        PairStatistics.of(torch.cat([same, others]), labels)


def estimated(x, labels, statistics, **settings):
    """A loss with the numbers that ``statistics`` finds on a batch, by the equations."""
    known = PairStatistics.of(x, labels)
    if statistics == "auto-quadratic":
        return CBMLLoss.from_statistics(known, exponent="quadratic", **settings)
    if abs(known.mean_neg) >= known.std_neg:
        return CBMLLoss.from_statistics(known, **settings)
    center = 0.5 + known.mean_neg / 2
    return CBMLLoss(center, known.std_pos, center - known.std_pos, known.std_pos, **settings)


@pytest.mark.parametrize("statistics", ["auto", "auto-quadratic"])
@pytest.mark.parametrize("offset", [0, 2])
def test_statistics_of_the_first_batch(statistics, offset):
    """A loss that estimates them equals one that was given them, from the first call on, and keeps them."""
    x, labels = loops.batch()
    x = x + offset  # far from 0, where no pair is orthogonal
    other = loops.batch(seed=1)[0] + offset
    loss = CBMLLoss(statistics=statistics, mining=False).double()
    wanted = estimated(x, labels, statistics, mining=False)
    for embeddings in (x, other):
        torch.testing.assert_close(loss(embeddings, labels), wanted(embeddings, labels))
    again = CBMLLoss(statistics=statistics, mining=False).double()
    again(x**3, labels)  # its own estimates are replaced
    again.load_state_dict(loss.state_dict())
    torch.testing.assert_close(again(other, labels), wanted(other, labels))
    assert again.rule == loss.rule == ("" if statistics != "auto" else "Sec. 4.4 F" if offset else "whitened start")
    with pytest.raises(ValueError, match="needs labels in the first call"):
        CBMLLoss(statistics=statistics)(x, None, (torch.tensor([0]), torch.tensor([1]), *[torch.tensor([0, 1])] * 2))
    with pytest.raises(ValueError, match="leave delta out"):
        CBMLLoss(statistics=statistics, delta=0.25)


def similar_to_whitened(shift=0.0):
    """Embeddings whose positive pairs are barely more similar than the negative ones; ``shift`` moves all from 0."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(64) // 8
    centers = 0.4 * torch.randn(8, 400, generator=generator)
    return torch.randn(64, 400, generator=generator) + centers[labels] + shift, labels


def test_a_whitened_start_has_equal_pulls_halfway(caplog):
    """float64: the rule from the similarities of all pairs, one at a time."""
    x, labels = similar_to_whitened()
    x = x.double()
    pairs = [(i, j) for i in range(64) for j in range(i)]
    positive = [float(loops.cosine(x[i], x[j])) for i, j in pairs if labels[i] == labels[j]]
    negative = [float(loops.cosine(x[i], x[j])) for i, j in pairs if labels[i] != labels[j]]
    mean_pos, mean_neg = sum(positive) / len(positive), sum(negative) / len(negative)
    assert abs(mean_neg) < 0.01 < mean_pos < 0.2
    width = math.sqrt(sum((s - mean_pos) ** 2 for s in positive) / len(positive))

    loss = CBMLLoss(statistics="auto").double()
    with caplog.at_level("INFO", logger="pml_ext"):
        for _ in range(2):
            loss(x.requires_grad_(), labels)
    assert loss.alpha_pos == pytest.approx((1 + mean_neg) / 2, rel=1e-12)
    assert loss.alpha_neg == pytest.approx(loss.alpha_pos - width, rel=1e-9)
    assert loss.beta_pos == loss.beta_neg == pytest.approx(width, rel=1e-9)
    assert loss.rule == "whitened start"
    assert [record.getMessage() for record in caplog.records] == [
        "CBML, statistics='auto': whitened start, because negative pairs are centered; centers "
        f"{loss.alpha_pos:.3g} and {loss.alpha_neg:.3g}, widths {width:.3g} and {width:.3g} (positive, negative pairs)"
    ]


def test_section_4_4_f_for_uncentered_negatives():
    """The width of the negatives is bounded, so that one of them gives no huge loss."""
    x, labels = similar_to_whitened(shift=0.3)
    paper = PairStatistics.of(x, labels).exponents()
    loss = CBMLLoss(statistics="auto")
    loss(x, labels)
    assert loss.rule == "Sec. 4.4 F"
    assert (loss.alpha_pos, loss.alpha_neg, loss.beta_pos) == (
        paper["alpha_pos"],
        paper["alpha_neg"],
        paper["beta_pos"],
    )
    assert loss.beta_neg == (1 - loss.alpha_neg) / 10 > paper["beta_neg"]
    one_negative = torch.eye(2)[[0, 0, 0]] + 1e-4 * torch.eye(2)[[0, 1, 1]]
    assert loss(one_negative, torch.tensor([0, 0, 1])) < 15


@pytest.mark.parametrize(("mean", "centered"), [(0.119, True), (-0.119, True), (0.12, False), (-0.12, False)])
def test_negatives_are_centered_within_one_deviation(mean, centered):
    assert dataclasses.replace(KNOWN, mean_neg=mean).is_centered == centered


@pytest.mark.parametrize(
    "distance",
    [
        DotProductSimilarity(normalize_embeddings=False),
        CosineSimilarity(power=3),
        CosineSimilarity(p=1),
        PDDMDistance(embedding_size=4),
    ],
)
def test_estimates_are_of_cosines_alone(distance):
    with pytest.raises(ValueError, match="are of cosine similarities"):
        CBMLLoss(statistics="auto", distance=distance)


@pytest.mark.parametrize("statistics", ["auto", "auto-quadratic"])
@pytest.mark.parametrize("training", [False, True])
def test_batches_before_training_are_not_kept(statistics, training):
    """A validation batch, or one without gradients, has its own statistics."""
    other = X.detach() + 0.1
    loss = CBMLLoss(statistics=statistics).double().train(training)
    with torch.set_grad_enabled(not training):
        wanted = estimated(other, LABELS, statistics)
        torch.testing.assert_close(loss(other, LABELS), wanted(other, LABELS))
    assert loss.estimates.isnan().all()
    loss.train()
    loss(X, LABELS)
    wanted = estimated(X, LABELS, statistics)
    torch.testing.assert_close(loss.eval()(other, LABELS), wanted(other, LABELS))


@pytest.mark.parametrize("statistics", ["auto", "auto-quadratic"])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("labels", [[0, 1, 0, 1], [0, 0, 0, 0]])
def test_a_batch_without_estimates_has_the_constants(statistics, training, labels):
    """Two classes that are no closer than others, or one class; the first batch that gives estimates is used."""
    given = torch.tensor(labels)
    x = torch.tensor([[1, 0.1, 0], [1, 0, 0.2], [0, 1, 0.3], [0.4, 1, 0]], dtype=torch.float64)
    loss = CBMLLoss(statistics=statistics).double().train(training)
    for _ in range(2):
        with pytest.warns(TrainingWarning, match="cannot be estimated on this batch"):
            found = loss(x, given)
        torch.testing.assert_close(found, CBMLLoss()(x, given))
    assert loss.estimates.isnan().all()
    batch = loops.batch()
    torch.testing.assert_close(loss.train()(*batch), estimated(*batch, statistics)(*batch))


def test_statistics_in_tiles_are_equal(monkeypatch):
    whole = PairStatistics.of(X, LABELS)
    monkeypatch.setattr("pml_ext_cbml.statistics.rows_per_tile", lambda *_: 3)
    assert dataclasses.astuple(PairStatistics.of(X, LABELS)) == pytest.approx(dataclasses.astuple(whole), rel=1e-12)


def mined_pairs(size, dtype=torch.float64):
    """Similarities with ties, masks with anchors that lack positives, negatives or both, and their counts."""
    draw = torch.Generator().manual_seed(size)
    similarity = (torch.rand(size, size, generator=draw, dtype=dtype) * 40).round() / 20 - 1
    masks = torch.rand(2, size, size, generator=draw) < torch.tensor([0.1, 0.8]).view(2, 1, 1)
    masks[0, 0] = False
    masks[1, 1] = False
    masks[:, 2] = False
    masks = indicators(masks, similarity)
    return similarity, masks, masks.sum(2, dtype=dtype)


@pytest.mark.parametrize("size", [12, 80])  # masks as booleans and as floats
@pytest.mark.parametrize("epsilon", [0.1, 0.0, -0.2])
@pytest.mark.parametrize(
    ("log_factors", "variance"),
    [(None, (1.0, 0.2, "mean", False)), (-0.5, (0.3, 0.7, "sum", True)), (None, (0.0, 0.2, "mean", False))],
)
def test_losses_computed_with_their_gradient(size, epsilon, log_factors, variance):
    similarity, masks, counts = mined_pairs(size)
    similarity.requires_grad_()
    sums = functional.HardSums((-2.0, 100.0), (0.5, 1.0), log_factors, epsilon)
    arguments = (similarity, masks, counts, sums, functional.Variance(*variance))
    found = functional.losses_of_anchors(*arguments)
    expected = functional._losses_written_out(*arguments)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    assert found[:3].count_nonzero() == 0
    weights = torch.linspace(-1, 2, size, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(found @ weights, similarity, retain_graph=True)  # as it was computed
    slopes = [torch.autograd.grad(each @ weights, similarity, create_graph=True)[0] for each in (found, expected)]
    torch.testing.assert_close(gradient, slopes[1], rtol=1e-11, atol=1e-14)
    torch.testing.assert_close(*slopes, rtol=1e-11, atol=1e-14)
    curvatures = [torch.autograd.grad(each.square().sum(), similarity)[0] for each in slopes]
    torch.testing.assert_close(*curvatures, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("size", [12, 80])
def test_a_nan_is_seen_in_its_row_alone(size):
    similarity, masks, counts = mined_pairs(size, torch.float32)
    similarity[5, masks[1, 5].nonzero()[0]] = torch.nan
    sums = functional.HardSums((-2.0, 100.0), (0.5, 1.0), None, 0.1)
    losses = functional.losses_of_anchors(similarity, masks, counts, sums, functional.Variance(1, 0.2, "mean", False))
    assert losses[5].isnan()
    assert losses[6:].isfinite().all()
