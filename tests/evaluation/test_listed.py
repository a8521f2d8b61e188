"""Metrics of listed pairs and triplets against loops and scikit-learn's curves."""

import numpy as np
import pytest
import torch
from pytorch_metric_learning.distances import CosineSimilarity, LpDistance

from pml_ext.evaluation import best_threshold, scores_of_pairs, triplet_accuracy, tuple_metrics, verify
from pml_ext.evaluation.pairs import VerificationPairs
from pml_ext.pairwise import ListedTuples


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
