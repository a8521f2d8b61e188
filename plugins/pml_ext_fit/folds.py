"""Folds of training items: each class is held out once, or each item if the tested classes train."""

import warnings
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

FOLDS = 4  # at most
FEWEST_CLASSES = 4  # with two items; fewer tell nothing about other classes
CLASSES_OF_FOLD = 3  # at least, so that there are wrong answers; of four or five classes, two

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Fold:
    """Rows of the training items that are held out, and the others, which fit a candidate."""

    fitted: Rows
    held_out: Rows


@dataclass(frozen=True)
class Folds:
    """Parts of the training items, each held out once."""

    by: Literal["class", "item"]
    parts: list[Fold]
    classes: int  # that are held out, in one fold or in all

    def __str__(self) -> str:
        held_out = "each" if self.by == "class" else "the items"
        return f"{held_out} of {self.classes} training classes held out once, in {len(self.parts)} folds"


def folds_of(labels: Any, shared: bool, seed: int) -> Folds | None:
    """Divide items with labels ``[N]`` into folds; None if there are too few.

    Whole classes with two items or more are held out. If the tested classes train (``shared``), the items of each class
    are divided; for new classes, this would make whitening within classes look far too good.
    """
    labels = np.asarray(labels)
    known, counts = np.unique(labels, return_counts=True)
    usable = known[counts > 1]
    if shared:
        return _folds_of_items(labels, counts, seed)
    if len(usable) < FEWEST_CLASSES:
        return None
    return _folds_of_classes(labels, usable, seed)


def _folds_of_classes(labels: Any, usable: Any, seed: int) -> Folds:
    from sklearn.model_selection import KFold

    number = max(2, min(FOLDS, len(usable) // CLASSES_OF_FOLD))
    parts = []
    for _, chosen in KFold(number, shuffle=True, random_state=seed).split(usable):
        held_out = np.isin(labels, usable[chosen])
        parts.append(Fold(np.flatnonzero(~held_out), np.flatnonzero(held_out)))
    return Folds("class", parts, len(usable))


def _folds_of_items(labels: Any, counts: Any, seed: int) -> Folds | None:
    """Folds with two items of the largest class or more; None if that is impossible."""
    from sklearn.model_selection import StratifiedKFold

    number = min(FOLDS, int(counts.max()) // 2)
    if number < 2 or len(counts) < 2:
        return None
    divided = StratifiedKFold(number, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)  # it is tested in fewer folds
        pairs = list(divided.split(np.zeros(len(labels)), labels))
    parts = [Fold(fitted, held_out) for fitted, held_out in pairs]
    return Folds("item", parts, int((counts > 1).sum()))
