"""Recall@1 and MAP@R of held-out classes, and which candidate they choose.

That is the best closed form, or a trained candidate that is significantly better.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pml_ext.evaluation import RetrievalAccuracyCalculator

from .candidates import Candidate

SIGNIFICANT = 0.05  # p of a paired t-test over the classes


@dataclass(frozen=True)
class Scores:
    """Recall@1 and MAP@R of each held-out class, ``[C]``, float64; a class of divided items has one in each fold."""

    recall_at_1: Tensor
    map_at_r: Tensor

    @property
    def both(self) -> Tensor:
        """The mean of the two, ``[C]``, which is compared."""
        return (self.recall_at_1 + self.map_at_r) / 2

    def __str__(self) -> str:
        return f"{100 * float(self.recall_at_1.mean()):.1f} / {100 * float(self.map_at_r.mean()):.1f}"


def scores_of(embeddings: Tensor, labels: Tensor) -> Scores:
    """Scores of held-out classes with two items or more, each item against all others, by cosine."""
    names = ["precision_at_1", "mean_average_precision_at_r"]
    calculator = RetrievalAccuracyCalculator(names, k="max_bin_count", return_per_class=True, device=embeddings.device)
    found = calculator.evaluate(nn.functional.normalize(embeddings), labels.cpu()).accuracies
    recall, map_at_r = (torch.tensor(found[name], dtype=torch.float64) for name in names)
    return Scores(recall, map_at_r)


def joined(parts: Sequence[Scores]) -> Scores:
    """Scores pooled over folds."""
    return Scores(torch.cat([part.recall_at_1 for part in parts]), torch.cat([part.map_at_r for part in parts]))


@dataclass(frozen=True)
class Scored:
    """A candidate and its scores in the first folds, or in all."""

    candidate: Candidate
    by_fold: list[Scores]

    @property
    def scores(self) -> Scores:
        """Scores pooled over all folds."""
        return joined(self.by_fold)


def best_of(scored: Sequence[Scored]) -> Scored:
    """The candidate with the greatest mean of Recall@1 and MAP@R; the first of equal ones."""
    return max(scored, key=lambda each: float(each.scores.both.mean()))


def gain(costly: Sequence[Scores], free: Sequence[Scores]) -> tuple[float, float]:
    """The mean lead of a trained candidate over classes, and p of a paired t-test."""
    from scipy.stats import ttest_rel

    after = joined(costly).both
    before = joined(free[: len(costly)]).both
    return float((after - before).mean()), float(ttest_rel(after, before).pvalue)


def is_significant(costly: Sequence[Scores], free: Sequence[Scores]) -> bool:
    """Whether a trained candidate is significantly better than a closed form."""
    difference, p = gain(costly, free)
    return difference > 0 and p < SIGNIFICANT
