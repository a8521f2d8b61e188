"""Verification: how well the similarity of two items predicts whether they are the same.

A pair has a *score*, greater for more similar items, and is accepted if its score is at least a threshold. TAR is the
share of same pairs that are accepted, FAR the share of other pairs.

- ``roc_auc``, ``average_precision``: as in scikit-learn.
- ``eer``: the equal error rate, where FAR equals 1 - TAR on the ROC curve, interpolated linearly.
- ``tar_at_far_X``: the greatest TAR with a FAR of at most X. With fewer than 1 / X different pairs, the FAR must be 0.
- ``accuracy``: the share of right decisions at a threshold from training pairs.
- ``accuracy_10_fold``: the mean accuracy of ten folds, each at the best threshold of the nine others, as for Labeled
  Faces in the Wild (Huang et al. 2007); ``accuracy_10_fold_error`` is its standard error.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .neighbors import check_embeddings, evaluating
from .pairs import VerificationPairs, answers

if TYPE_CHECKING:
    from ..pml import BaseDistance

FAR = (0.1, 0.01, 0.001, 0.0001)
FOLDS = 10
_PAIRS_AT_A_TIME = 1 << 16


def pair_scores(
    embeddings: Any, pairs: VerificationPairs, references: Any = None, distance: BaseDistance | None = None
) -> NDArray[np.float64]:
    """The scores ``[P]`` of pairs, greater for more similar ones.

    Args:
        embeddings: ``[N, D]``.
        pairs: pairs of rows.
        references: ``[R, D]``, the rows of the second items; by default the embeddings.
        distance: of PML or ours; the score is its negative, or the similarity. By default cosine similarity.
    """
    x: Tensor = torch.as_tensor(embeddings).detach()
    y: Tensor = x if references is None else torch.as_tensor(references).detach()
    check_embeddings("embeddings", x)
    check_embeddings("references", y)
    if x.shape[1] != y.shape[1]:
        raise ValueError(f"references must have the size of embeddings, {x.shape[1]}; got {y.shape[1]}")
    scores = torch.empty(len(pairs), dtype=torch.float64)
    for start in range(0, len(pairs), _PAIRS_AT_A_TIME):
        part = slice(start, start + _PAIRS_AT_A_TIME)
        scores[part] = _scores(x[pairs.first[part].to(x.device)], y[pairs.second[part].to(y.device)], distance)
    return scores.numpy()


def verify(
    embeddings: Any,
    pairs: VerificationPairs,
    references: Any = None,
    *,
    threshold: float | None = None,
    folds: Any = None,
    distance: BaseDistance | None = None,
    far: Iterable[float] = FAR,
) -> dict[str, float]:
    """The verification metrics of pairs of embeddings, named as in this module.

    Args:
        embeddings: ``[N, D]``.
        pairs: of :func:`listed_pairs` or :func:`pairs_of_classes`.
        references: see :func:`pair_scores`.
        distance: see :func:`pair_scores`.
        threshold: from :func:`best_threshold` of training pairs; None for the ten-fold protocol.
        folds: fold of each pair, integers ``[P]``; by default ten random folds with equal shares of both kinds.
        far: false accept rates.

    Example:
        >>> from pml_ext.evaluation import pairs_of_classes
        >>> pairs = pairs_of_classes(torch.tensor([0, 0, 1, 1]))
        >>> verify(torch.tensor([[1.0, 0.0], [1.0, 0.2], [0.0, 1.0], [0.1, 1.0]]), pairs, threshold=0.5)["accuracy"]
        1.0
    """
    scores = pair_scores(embeddings, pairs, references, distance)
    return verification_metrics(scores, pairs.same, threshold=threshold, folds=folds, far=far)


def verification_metrics(
    scores: Any, same: Any, *, threshold: float | None = None, folds: Any = None, far: Iterable[float] = FAR
) -> dict[str, float]:
    """The verification metrics of scores ``[P]`` by name; see :func:`verify`.

    Raises:
        ValueError: different lengths, NaN among the scores, pairs of one kind alone, or too few for the folds.
    """
    scores, same = _checked(scores, same)
    if threshold is not None and folds is not None:
        raise ValueError("threshold and folds both say where pairs are accepted; leave out one")
    metrics = curve_metrics(scores, same, far)
    if threshold is None:
        return metrics | fold_metrics(scores, same, folds)
    return metrics | {"accuracy": accuracy_at(scores, same, threshold)}


def curve_metrics(scores: Any, same: Any, far: Iterable[float] = FAR) -> dict[str, float]:
    """ROC AUC, average precision, EER, TAR at FAR."""
    from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

    scores, same = _checked(scores, same)
    metrics = {
        "roc_auc": float(roc_auc_score(same, scores)),
        "average_precision": float(average_precision_score(same, scores)),
    }
    false_accepts, true_accepts, _ = roc_curve(same, scores, drop_intermediate=False)
    metrics["eer"] = _equal_error_rate(false_accepts, true_accepts)
    for rate in far:
        if not 0 <= rate <= 1:
            raise ValueError(f"far must be rates from 0 to 1; got {rate!r}")
        metrics[f"tar_at_far_{rate:g}"] = float(true_accepts[false_accepts <= rate].max())
    return metrics


def best_threshold(scores: Any, same: Any) -> float:
    """The threshold with the best accuracy, the greatest of several.

    Thresholds lie halfway between two neighboring scores, or are infinite.
    """
    scores, same = _checked(scores, same)
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    ends = np.append(np.flatnonzero(ordered[1:] != ordered[:-1]), len(ordered) - 1)  # last pair of each score
    accepted = np.where(same[order], 1, -1).cumsum()[ends]  # right accepts less false ones
    gains = np.insert(accepted, 0, 0)
    best = int(gains.argmax())
    if best == 0:
        return float("inf")
    if best == len(ends):
        return float("-inf")
    above = float(ordered[ends[best - 1]])
    below = float(ordered[ends[best - 1] + 1])
    middle = (above + below) / 2
    return middle if middle > below else above


def accuracy_at(scores: Any, same: Any, threshold: float) -> float:
    """The share of right decisions at ``threshold``."""
    if np.isnan(threshold):
        raise ValueError("threshold is NaN; wanted a number, such as best_threshold(...) of training pairs")
    return float(((np.asarray(scores) >= threshold) == np.asarray(same)).mean())


def fold_accuracies(scores: Any, same: Any, folds: Any = None) -> NDArray[np.float64]:
    """The accuracy of each fold at the best threshold of the others."""
    scores, same = _checked(scores, same)
    fold_of_pair = _folds(same) if folds is None else np.asarray(folds)
    if fold_of_pair.shape != same.shape or fold_of_pair.dtype.kind not in "iu":
        found = f"{fold_of_pair.dtype} of shape {list(fold_of_pair.shape)}"
        raise ValueError(f"folds must be one integer for each of {len(same)} pairs; got {found}")
    accuracies = []
    numbers = np.unique(fold_of_pair)
    if len(numbers) < 2:
        raise ValueError("folds must have two numbers or more; each fold is tested at the threshold of the others")
    for number in numbers:
        tested = fold_of_pair == number
        threshold = best_threshold(scores[~tested], same[~tested])
        accuracies.append(accuracy_at(scores[tested], same[tested], threshold))
    return np.array(accuracies)


def fold_metrics(scores: Any, same: Any, folds: Any = None) -> dict[str, float]:
    """Mean and standard error of :func:`fold_accuracies`."""
    accuracies = fold_accuracies(scores, same, folds)
    name = f"accuracy_{len(accuracies)}_fold"
    return {
        name: float(accuracies.mean()),
        f"{name}_error": float(accuracies.std(ddof=1) / np.sqrt(len(accuracies))),
    }


def _folds(same: NDArray[np.bool_]) -> NDArray[np.int64]:
    generator = np.random.default_rng(0)
    folds = np.empty(len(same), dtype=np.int64)
    for kind in (True, False):
        members = generator.permutation(np.flatnonzero(same == kind))
        if len(members) < FOLDS:
            name = "are the same" if kind else "are not the same"
            raise ValueError(
                f"ten folds need ten pairs of each kind; {len(members)} {name}. List more, or choose a threshold on "
                "training pairs: threshold=best_threshold(...)"
            )
        folds[members] = np.arange(len(members)) % FOLDS
    return folds


def _equal_error_rate(false_accepts: NDArray[np.float64], true_accepts: NDArray[np.float64]) -> float:
    excess = false_accepts + true_accepts - 1  # FAR - (1 - TAR), from -1 to 1
    after = int(np.argmax(excess >= 0))
    before = after - 1
    share = -excess[before] / (excess[after] - excess[before])
    return float(false_accepts[before] + share * (false_accepts[after] - false_accepts[before]))


def _checked(scores: Any, same: Any) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    scores = np.asarray(scores, dtype=np.float64)
    same = answers(same).numpy()
    if scores.ndim != 1 or scores.shape != same.shape:
        raise ValueError(
            f"wanted one score and one same for each pair; got shapes {list(scores.shape)}, {list(same.shape)}"
        )
    number_of_nan = int(np.isnan(scores).sum())
    if number_of_nan:
        raise ValueError(f"{number_of_nan} of {len(scores)} scores are NaN; wanted numbers")
    if same.all() or not same.any():
        kind = "the same" if len(same) and same.all() else "not the same"
        raise ValueError(f"all {len(same)} pairs are {kind}; wanted pairs of both kinds")
    return scores, same


def _scores(x: Tensor, y: Tensor, distance: BaseDistance | None) -> Tensor:
    if distance is None:
        if x.device.type == "mps":  # has no float64
            x = x.cpu()
            y = y.cpu()
        cosines: Tensor = torch.nn.functional.cosine_similarity(x.double(), y.double(), dim=1)
        return cosines
    with evaluating(distance):
        values: Tensor = distance.pairwise_distance(distance.maybe_normalize(x), distance.maybe_normalize(y))
    return (values if distance.is_inverted else -values).cpu().double()
