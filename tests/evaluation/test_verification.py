"""Verification metrics against loops over thresholds and against scikit-learn."""

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
    neighbors_under,
    pair_scores,
    pairs_of_classes,
    verification,
    verification_metrics,
    verify,
)
from pml_ext.evaluation.metrics import metrics_of
from pml_ext.evaluation.verification import accuracy_at, curve_metrics, fold_accuracies

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
