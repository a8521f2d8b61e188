"""Which candidate to take: the best of those that cost nothing, or a trained one that is significantly better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from pml_ext.tool import RetrievalAccuracyCalculator

if TYPE_CHECKING:
    from .candidates import Candidate

SIGNIFICANT = 0.05  # p of a paired t-test over the classes


@dataclass(frozen=True)
class Scores:
    """Recall@1 and MAP@R of each class that was held out, ``[C]``, float64; of items, of each class in each fold."""

    recall_at_1: Tensor
    map_at_r: Tensor

    @property
    def both(self) -> Tensor:
        """The mean of the two, which is compared, ``[C]``."""
        return (self.recall_at_1 + self.map_at_r) / 2

    def __str__(self) -> str:
        return f"{100 * float(self.recall_at_1.mean()):.1f} / {100 * float(self.map_at_r.mean()):.1f}"


def scores_of(embeddings: Tensor, labels: Tensor) -> Scores:
    """Return the scores of the classes of held-out items that have two, by cosine, each item against all others."""
    names = ["precision_at_1", "mean_average_precision_at_r"]
    calculator = RetrievalAccuracyCalculator(names, k="max_bin_count", return_per_class=True, device=embeddings.device)
    found = calculator.evaluate(nn.functional.normalize(embeddings), labels.cpu()).accuracies
    recall, map_at_r = (torch.tensor(found[name], dtype=torch.float64) for name in names)
    return Scores(recall, map_at_r)


def joined(parts: Sequence[Scores]) -> Scores:
    """Return the scores of several folds together."""
    return Scores(torch.cat([part.recall_at_1 for part in parts]), torch.cat([part.map_at_r for part in parts]))


@dataclass(frozen=True)
class Scored:
    """A candidate that was tried, and its scores in the first folds, or in all."""

    candidate: Candidate
    by_fold: list[Scores]

    @property
    def scores(self) -> Scores:
        """Those of all its folds."""
        return joined(self.by_fold)


def best_of(scored: Sequence[Scored]) -> Scored:
    """Return the candidate with the greatest mean over classes, of those that cost nothing; the first of equals."""
    return max(scored, key=lambda each: float(each.scores.both.mean()))


def gain(costly: Sequence[Scores], free: Sequence[Scores]) -> tuple[float, float]:
    """Return by how much a costly candidate is ahead in its folds, the mean over classes, and p of a paired t-test."""
    from scipy.stats import ttest_rel

    after = joined(costly).both
    before = joined(free[: len(costly)]).both
    return float((after - before).mean()), float(ttest_rel(after, before).pvalue)


def is_significant(costly: Sequence[Scores], free: Sequence[Scores]) -> bool:
    """Return whether a costly candidate is significantly better than one that costs nothing."""
    difference, p = gain(costly, free)
    return difference > 0 and p < SIGNIFICANT
