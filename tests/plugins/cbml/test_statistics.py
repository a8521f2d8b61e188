"""The settings that Sec. 4.4 F finds, the quadratic exponent, and the ratio functions of Fig. 3."""

import dataclasses
import math

import pytest
import torch
from matplotlib.figure import Figure
from pytorch_metric_learning.distances import CosineSimilarity, DotProductSimilarity

from pml_ext import PDDMDistance
from pml_ext.errors import TrainingWarning
from pml_ext_cbml.functional import log_ratio
from pml_ext_cbml.losses import CBMLLoss
from pml_ext_cbml.statistics import PairStatistics

from . import loops

KNOWN = PairStatistics(mean_pos=0.7, std_pos=0.15, mean_neg=0.2, std_neg=0.12, num_pos=7, num_neg=112)


def test_statistics_of_a_batch_equal_loops():
    x, labels = loops.batch()
    similarity = torch.nn.functional.cosine_similarity(x[:, None].detach(), x[None].detach(), dim=-1)
    pairs = [(i, j) for i in range(10) for j in range(10) if i != j]
    positive = [float(similarity[i, j]) for i, j in pairs if labels[i] == labels[j]]
    negative = [float(similarity[i, j]) for i, j in pairs if labels[i] != labels[j]]
    known = PairStatistics.of(x, labels)
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
    from pml_ext_cbml.statistics import likelihood_ratio_figure

    x, labels = loops.batch(rows=120, near=1.5)
    figure = likelihood_ratio_figure({"training": (x, labels), "one class": (x.detach() + 0.1, torch.zeros(120))})
    assert isinstance(figure, Figure)
    lines = {line.get_label(): line for line in figure.axes[1].get_lines()}
    assert set(lines) == {"ratio of the two", "Eq. 20"}
    known = PairStatistics.of(x, labels)
    drawn = lines["Eq. 20"]
    z = torch.tensor(drawn.get_xdata())
    heights = torch.tensor(drawn.get_ydata())
    wanted = log_ratio(z, known.mean_pos, known.std_pos, known.mean_neg, known.std_neg).exp()
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
    known = PairStatistics.of(x, labels)
    paper = known.exponents()
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


@pytest.mark.parametrize("sign", [-1, 1])
def test_negatives_are_centered_within_one_deviation(sign):
    inside = dataclasses.replace(KNOWN, mean_neg=sign * 0.119)
    at_it = dataclasses.replace(KNOWN, mean_neg=sign * 0.12)
    assert [inside.is_centered, at_it.is_centered] == [True, False]


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
    x, labels = loops.batch()
    other = x.detach() + 0.1
    loss = CBMLLoss(statistics=statistics).double().train(training)
    with torch.set_grad_enabled(not training):
        wanted = estimated(other, labels, statistics)
        torch.testing.assert_close(loss(other, labels), wanted(other, labels))
    assert loss.estimates.isnan().all()
    loss.train()
    loss(x, labels)
    wanted = estimated(x, labels, statistics)
    torch.testing.assert_close(loss.eval()(other, labels), wanted(other, labels))


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
    wanted = estimated(*batch, statistics)
    torch.testing.assert_close(loss.train()(*batch), wanted(*batch))


def test_statistics_in_tiles_are_equal(monkeypatch):
    x, labels = loops.batch()
    whole = PairStatistics.of(x, labels)
    monkeypatch.setattr("pml_ext_cbml.statistics.rows_per_tile", lambda *_: 3)
    tiles = PairStatistics.of(x, labels)
    assert dataclasses.astuple(tiles) == pytest.approx(dataclasses.astuple(whole), rel=1e-12)
