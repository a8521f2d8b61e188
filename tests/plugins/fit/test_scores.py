"""Recall@1 and MAP@R by class, and the candidate that they choose."""

import numpy as np
import pytest
import torch

from pml_ext_fit import scores
from pml_ext_fit.scores import Scored, Scores

from . import helpers


def test_scores_are_means_over_each_class():
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(60, 4, generator=generator)
    labels = torch.cat([torch.arange(9).repeat(6), torch.tensor([3, 3, 7, 7, 7, 9])])  # one item of the last
    similarities = torch.nn.functional.normalize(points) @ torch.nn.functional.normalize(points).T
    recalls, values = [], []
    for label in range(9):
        right_first, of_class = [], []
        for query in (labels == label).nonzero().flatten().tolist():
            order = similarities[query].argsort(descending=True)
            right = labels[order[order != query]] == label
            relevant = int(right.sum())
            precision = right.double().cumsum(0) / torch.arange(1, len(right) + 1)
            of_class.append(float((precision * right)[:relevant].sum()) / relevant)
            right_first.append(float(right[0]))
        recalls.append(np.mean(right_first))
        values.append(np.mean(of_class))
    found = scores.scores_of(points, labels)
    torch.testing.assert_close(found.recall_at_1, torch.tensor(recalls, dtype=torch.float64), atol=1e-6, rtol=0)
    torch.testing.assert_close(found.map_at_r, torch.tensor(values, dtype=torch.float64), atol=1e-6, rtol=0)


def test_large_classes_are_searched_without_keeping_neighbors(monkeypatch):
    kept = []
    evaluate = scores.RetrievalAccuracyCalculator.evaluate
    monkeypatch.setattr(
        scores.RetrievalAccuracyCalculator,
        "evaluate",
        lambda self, *given, keep=0: kept.append(keep) or evaluate(self, *given, keep=keep),
    )
    scores.scores_of(torch.randn(40, 3), torch.arange(2).repeat(20))
    assert kept == [0]


def test_both_scores_count_the_same():
    found = Scores(torch.tensor([0.5, 0.7]).double(), torch.tensor([0.1, 0.3]).double())
    torch.testing.assert_close(found.both, torch.tensor([0.3, 0.5]).double())
    assert str(found) == "60.0 / 20.0"


@pytest.mark.parametrize(("means", "wanted"), [((0.3, 0.2, 0.31), 2), ((0.5, 0.5, 0.4), 0), ((0.1, 0.4, 0.4), 1)])
def test_the_simplest_of_equal_closed_forms_wins(means, wanted):
    tried = [Scored(None, [helpers.scores(mean, spread=0)]) for mean in means]
    assert scores.best_of(tried) is tried[wanted]
