"""Pairs to verify, listed tuples and their metrics, against loops and scikit-learn."""

import itertools
import math

import numpy as np
import pytest
import torch
from pytorch_metric_learning.distances import CosineSimilarity, LpDistance
from sklearn.metrics import average_precision_score, roc_auc_score

from pml_ext import RetrievalAccuracyCalculator, SharedLabel
from pml_ext.evaluation import (
    best_threshold,
    listed_pairs,
    neighbors_under,
    pair_scores,
    pairs_of_classes,
    scores_of_pairs,
    triplet_accuracy,
    tuple_metrics,
    verification,
    verification_metrics,
    verify,
)
from pml_ext.evaluation.metrics import metrics_of
from pml_ext.evaluation.pairs import VerificationPairs
from pml_ext.evaluation.verification import accuracy_at, curve_metrics, fold_accuracies
from pml_ext.pairwise import ListedTuples

from .points import data


def scores_and_same(count=60, ties=False, seed=0):
    rng = np.random.default_rng(seed)
    same = rng.random(count) < 0.4
    scores = rng.normal(size=count) + same
    return np.round(scores) if ties else scores, same


class OnMps:
    """A tensor of a device without float64."""

    device = torch.device("mps")

    def __init__(self, values):
        self.values = values

    def __neg__(self):
        return OnMps(-self.values)

    def cpu(self):
        return self.values

    def double(self):
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64.")


@pytest.mark.parametrize("distance", [None, LpDistance(), CosineSimilarity()])
def test_scores_of_a_device_without_float64(distance, monkeypatch):
    x = torch.randn(5, 3)
    y = torch.randn(5, 3)
    wanted = verification._scores(x, y, distance)
    if distance is None:
        found = verification._scores(OnMps(x), OnMps(y), None)
    else:
        values = distance.pairwise_distance(distance.maybe_normalize(x), distance.maybe_normalize(y))
        monkeypatch.setattr(distance, "pairwise_distance", lambda *_: OnMps(values))
        found = verification._scores(x, y, distance)
    assert torch.equal(found, wanted)
    assert found.dtype == torch.float64


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_curves_of_scores_equal_slow_loops(ties, seed):
    scores, same = scores_and_same(ties=ties, seed=seed)
    rates = []  # FAR and TAR of each threshold
    for threshold in [math.inf, *sorted(set(scores), reverse=True)]:
        accepted = scores >= threshold
        rates.append((accepted[~same].mean(), accepted[same].mean()))
    expected = {"roc_auc": roc_auc_score(same, scores), "average_precision": average_precision_score(same, scores)}
    for limit in ("0.1", "0.01", "0.001", "0.0001"):
        expected[f"tar_at_far_{limit}"] = max(tar for far, tar in rates if far <= float(limit))
    for (far, tar), (far_next, tar_next) in itertools.pairwise(rates):  # where the line crosses FAR = 1 - TAR
        low = far + tar - 1
        high = far_next + tar_next - 1
        if low < 0 <= high:
            expected["eer"] = far - low / (high - low) * (far_next - far)
    assert curve_metrics(scores, same) == pytest.approx(expected, abs=1e-12)


def best_accuracy(scores, same):
    middles = [(a + b) / 2 for a, b in itertools.pairwise(sorted(set(scores)))]
    found = [(sum((score >= t) == s for score, s in zip(scores, same, strict=True)), t) for t in middles]
    return max([*found, (sum(same), -math.inf), (sum(~same), math.inf)])


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_best_threshold_and_folds_equal_loops(ties, seed):
    scores, same = scores_and_same(ties=ties, seed=seed)
    right, threshold = best_accuracy(scores, same)
    assert best_threshold(scores, same) == threshold
    assert accuracy_at(scores, same, threshold) == right / len(same)

    folds = np.arange(60) % 5
    expected = []
    for fold in range(5):
        tested = folds == fold
        _, threshold = best_accuracy(scores[~tested], same[~tested])
        expected.append(np.mean([(a >= threshold) == b for a, b in zip(scores[tested], same[tested], strict=True)]))
    np.testing.assert_array_equal(fold_accuracies(scores, same, folds), expected)
    found = verification_metrics(scores, same, folds=folds)
    assert found["accuracy_5_fold"] == pytest.approx(np.mean(expected))
    assert found["accuracy_5_fold_error"] == pytest.approx(np.std(expected, ddof=1) / 5**0.5)


def test_extreme_thresholds_accept_all_or_nothing():
    same = np.array([True, False])
    assert best_threshold([0.0, 1.0], same) == math.inf
    assert best_threshold([1.0, 1.0], same) == math.inf
    assert best_threshold([0.0, 1.0, 0.5], [True, False, True]) == -math.inf
    next_to_one = np.nextafter(1.0, 0)
    assert accuracy_at([1.0, next_to_one], same, best_threshold([1.0, next_to_one], same)) == 1


@pytest.mark.parametrize("distance", [None, CosineSimilarity(), LpDistance(normalize_embeddings=False)])
def test_scores_of_pairs_equal_a_loop(distance, monkeypatch):
    monkeypatch.setattr("pml_ext.evaluation.verification._PAIRS_AT_A_TIME", 7)
    x = data(12)[0]
    y = data(9, seed=1)[0]
    pairs = pairs_of_classes(torch.arange(12) % 3, torch.arange(9) % 3)
    found = pair_scores(x, pairs, y, distance)
    for score, i, j in zip(found, pairs.first.tolist(), pairs.second.tolist(), strict=True):
        a = x[i].double()
        b = y[j].double()
        expected = -float((a - b).norm())
        if distance is None or distance.is_inverted:
            expected = float(a @ b / a.norm() / b.norm())
        assert score == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("gallery", [False, True])
@pytest.mark.parametrize("verification", ["all", 50])
def test_calculator_verifies_pairs_of_its_sides(verification, gallery):
    x, labels = data()
    y, others = data(seed=1) if gallery else (None, None)
    include = [metric.name for metric in metrics_of(verification=True) if metric.of_pairs]
    calculator = RetrievalAccuracyCalculator([*include, "recall_at_1"], verification=verification)
    found = calculator.get_accuracy(x, labels, y, others)
    pairs = pairs_of_classes(labels, others, None if verification == "all" else 50)
    expected = verify(x, pairs, y, distance=LpDistance(normalize_embeddings=False))
    assert {name: found[f"verification_{name}"] for name in expected} == expected
    assert len(found) == len(expected) + 1


def test_the_calculator_takes_its_searchs_distance():
    x, labels = data()
    search = neighbors_under(CosineSimilarity())
    calculator = RetrievalAccuracyCalculator(("verification_eer",), knn_func=search, verification="all")
    found = calculator.get_accuracy(x, labels)
    assert found == {"verification_eer": verify(x, pairs_of_classes(labels), distance=CosineSimilarity())["eer"]}
    assert "verification_eer" not in RetrievalAccuracyCalculator().get_accuracy(x, labels)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: curve_metrics([0.1, math.nan], [1, 0]), "1 of 2 scores are NaN"),
        (lambda: curve_metrics([0.1, 0.2], [1, 1]), "all 2 pairs are the same; wanted pairs of both kinds"),
        (lambda: curve_metrics([], []), "all 0 pairs are not the same"),
        (lambda: curve_metrics([0.1, 0.2], [1, 0, 1]), r"got shapes \[2\], \[3\]"),
        (lambda: curve_metrics([0.1, 0.2], [1, 0], far=[2]), "far must be rates from 0 to 1; got 2"),
        (lambda: verification_metrics([0.1, 0.2], [1, 0]), "ten folds need ten pairs of each kind; 1 are the same"),
        (lambda: verification_metrics([0.1, 0.2], [1, 0], threshold=0.1, folds=[0, 1]), "leave out one"),
        (lambda: verification_metrics([0.1, 0.2], [1, 0], threshold=math.nan), "threshold is NaN; wanted a number"),
        (lambda: curve_metrics([0.1, 0.2], [1, 2]), "same must be 1 or 0 for each pair .*; got 2"),
        (lambda: curve_metrics([0.1, 0.2], ["yes", "no"]), "same must be numbers, .* got a list"),
        (lambda: fold_accuracies([0.1, 0.2], [1, 0], [0, 0]), "folds must have two numbers or more"),
        (lambda: fold_accuracies([0.1, 0.2], [1, 0], [0.5, 0]), "folds must be one integer for each of 2 pairs"),
        (
            lambda: verify(torch.full((2, 2), math.nan), pairs_of_classes([0, 0])),
            "2 of 2 rows of embeddings have NaN",
        ),
        (lambda: verify(torch.ones(3), pairs_of_classes([0, 0])), r"embeddings must be .* \[N, D\]"),
        (lambda: verify(torch.ones(2, 3), pairs_of_classes([0], [0]), torch.ones(1, 2)), "the size of embeddings, 3"),
        (
            lambda: RetrievalAccuracyCalculator(verification="all", relation=SharedLabel()),
            r"with a relation .* list the pairs",
        ),
        (
            lambda: RetrievalAccuracyCalculator(("verification_eer",), verification=10).get_accuracy(
                *data(), *data(), ref_includes_query=True
            ),
            "ref_includes_query puts the queries into the gallery too",
        ),
    ],
)
def test_invalid_scores_and_pairs_raise_errors(call, text):
    with pytest.raises((TypeError, ValueError), match=text) as error:
        call()
    assert "\n" not in str(error.value)


def as_set(pairs):
    return {(a, b, s) for a, b, s in zip(*(x.tolist() for x in vars(pairs).values()), strict=True)}


LABELS = torch.tensor([3, 1, 3, 2, 1, 3, 7])


REFERENCES = torch.tensor([1, 3, 3, 9, 2])


@pytest.mark.parametrize("reference_labels", [None, REFERENCES])
def test_pairs_of_classes_equal_a_loop(reference_labels):
    expected = set()
    for i, label in enumerate(LABELS.tolist()):
        for j, other in enumerate((LABELS if reference_labels is None else reference_labels).tolist()):
            if reference_labels is not None or i < j:
                expected.add((i, j, label == other))
    everything = pairs_of_classes(LABELS, reference_labels)
    assert as_set(everything) == expected
    assert len(everything) == len(expected)
    assert as_set(pairs_of_classes(LABELS, reference_labels, most=100)) == expected

    some = pairs_of_classes(LABELS, reference_labels, most=3)
    assert as_set(some) < expected
    assert len(as_set(some)) == 6
    assert int(some.same.sum()) == 3
    assert as_set(some) == as_set(pairs_of_classes(LABELS, reference_labels, most=3))
    assert as_set(some) != as_set(pairs_of_classes(LABELS, reference_labels, most=3, seed=1))


def test_sampled_pairs_are_drawn_equally_often():
    """Each of the 15 + 21 pairs is drawn about as often as any other."""
    counts = dict.fromkeys(as_set(pairs_of_classes(LABELS, REFERENCES)), 0)
    for seed in range(600):
        for pair in as_set(pairs_of_classes(LABELS, REFERENCES, most=3, seed=seed)):
            counts[pair] += 1
    for kind in (True, False):
        drawn = np.array([count for pair, count in counts.items() if pair[2] is kind])
        mean = drawn.mean()
        assert drawn.sum() == 1800
        assert abs(drawn - mean).max() < 5 * math.sqrt(mean)


def test_class_of_nearly_all_items_is_sampled():
    labels = torch.zeros(60_000, dtype=torch.long)
    labels[7] = 1
    pairs = pairs_of_classes(labels, most=100_000)
    assert int(pairs.same.sum()) == 100_000
    assert len(as_set(pairs)) == len(pairs) == 100_000 + 59_999


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: listed_pairs([0, 2], [1, 2], [1, 0], 3), "pair 1 is row 2 with itself"),
        (lambda: listed_pairs([0, 5], [1, 2], [1, 0], 3), "pair 1 names row 5 as its first item; rows are from 0 to 2"),
        (lambda: listed_pairs([0, 1], [1, 2], [1, 0], 3, 2), "pair 1 names row 2 as its second item; .* from 0 to 1"),
        (lambda: listed_pairs([0], [1, 2], [1, 0], 3), "one value for each pair; got shapes"),
        (lambda: listed_pairs([0, 1], [1, 2], [1, 3], 3), "same must be 1 or 0 .* got 3"),
        (lambda: listed_pairs([0, 1], [1, 2], [1, math.nan], 3), "same must be 1 or 0 .* got nan"),
        (lambda: listed_pairs([0.5, 1], [1, 2], [1, 0], 3), "first must be integers of one dimension"),
        (lambda: pairs_of_classes(torch.zeros(3, 2, dtype=torch.long)), "labels must be integers of one dimension"),
        (lambda: pairs_of_classes([1, 2], most=0), "most must be a whole number of at least 1"),
        (lambda: pairs_of_classes(torch.zeros(20_000).long()), "199,990,000 pairs; type most="),
        (lambda: listed_pairs([True, False], [1, 2], [1, 0], 4), "first must be integers of one dimension"),
        (lambda: pairs_of_classes(["a", "b"]), "labels must be numbers, a tensor, an array or a list"),
    ],
)
def test_invalid_pairs_raise_with_a_reason(call, text):
    with pytest.raises((TypeError, ValueError), match=text) as error:
        call()
    assert "\n" not in str(error.value)


def points(count=40, size=3, seed=0, ties=False):
    rows = torch.randn(count, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return rows.round() if ties else rows


def listed(count, width, seed=0):
    rng = np.random.default_rng(seed)
    rows = np.stack([rng.choice(40, width, replace=False) for _ in range(count)])
    return ListedTuples(rows, rng.random(count) < 0.4 if width == 2 else None)


def cosine(x, y):
    return float(x @ y / max(float(x.norm() * y.norm()), 1e-8))


@pytest.mark.parametrize("ties", [False, True])
def test_pairs_equal_a_loop_and_scikit_learn(ties):
    embeddings = points(ties=ties)
    tested = listed(120, 2)
    training = listed(90, 2, seed=1)
    scores = [cosine(embeddings[a], embeddings[b]) for a, b in tested.rows.tolist()]
    np.testing.assert_allclose(scores_of_pairs(embeddings, tested), scores, atol=1e-12)
    threshold = best_threshold(scores_of_pairs(embeddings, training), training.same)
    found = tuple_metrics(embeddings, tested, threshold)
    pairs = VerificationPairs(tested.rows[:, 0], tested.rows[:, 1], tested.same)
    expected = verify(embeddings, pairs) | verify(embeddings, pairs, threshold=threshold)
    assert found == {f"verification_{name}": value for name, value in expected.items()}


def test_few_pairs_have_no_folds_and_no_threshold():
    found = tuple_metrics(points(), listed(12, 2))
    assert "verification_roc_auc" in found
    assert not [name for name in found if "accuracy" in name]


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("distance", [None, LpDistance(normalize_embeddings=False), CosineSimilarity()])
def test_triplets_equal_a_loop_with_ties(ties, distance):
    embeddings = points(ties=ties)
    triplets = listed(200, 3)
    right = 0.0
    for a, p, n in triplets.rows.tolist():
        if isinstance(distance, LpDistance):
            near = -float((embeddings[a] - embeddings[p]).norm())
            far = -float((embeddings[a] - embeddings[n]).norm())
        else:
            near = cosine(embeddings[a], embeddings[p])
            far = cosine(embeddings[a], embeddings[n])
        right += 0.5 if abs(near - far) < 1e-12 else near > far
    closeness = 0.03 if ties else 1e-12  # scores that are equal on paper may differ in their last digit
    assert triplet_accuracy(embeddings, triplets, distance) == pytest.approx(right / 200, abs=closeness)


def test_ties_of_triplets_count_half():
    triplets = ListedTuples([[0, 1, 2], [3, 1, 2]])
    assert triplet_accuracy(torch.ones(4, 2), triplets) == 0.5
    rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0], [1.0, 1.0]])
    assert tuple_metrics(rows, triplets) == {"triplet_accuracy": 0.5}
    assert triplet_accuracy(torch.tensor([[1.0, 0], [1, 0.1], [0, 1], [1, 0.2]]), triplets) == 1
