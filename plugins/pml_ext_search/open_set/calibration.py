"""The threshold between known and new, calibrated on images whose own class is left out.

Each class that the run was not trained on stands for a new individual: the distances of its images to the nearest other
class decide. A threshold belongs to a collection, since with more images one is nearer by chance.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError
from torch import nn

from pml_ext.errors import DataError, counted, shortened
from pml_ext.evaluation import best_threshold, sample_indices
from pml_ext_train.files import DamagedError, read_json, write_json
from pml_ext_train.networks import By

from .open_set import (
    Classes,
    Distances,
    Nearest,
    expected_rate,
    inflation_of,
    interval_of,
    rows_in_several_classes,
    share_of_classes,
    threshold_at,
    without_own_class,
)

if TYPE_CHECKING:
    from ..collection.embedded import Embedded
    from .refitting import WithinClasses

FILE = "known-or-new.json"  # in the collection's folder
FAR = 0.05  # the rate of false acceptances without --far
MOST_QUERIES = 2000  # images that are compared with all others
FOLDS = 10
FEWEST_REFITTED = 4  # trained classes, for two folds of two; this many new ones are compared without refitting


Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Calibration(BaseModel, frozen=True):
    """A threshold between known and new, and what it was calibrated on."""

    threshold: float = Field(ge=0, le=2, allow_inf_nan=False)  # greatest distance of a known image to the nearest class
    far: Share | None  # the wanted rate of false acceptances; None: the best accuracy
    expected: Share  # bound of the expected rate
    interval: tuple[Share, Share] = (0.0, 1.0)  # of the rate with these enrolled classes, 90 %
    nearest: Nearest
    by: By
    identity: str  # of the network
    gallery: str  # digest of the enrolled images and classes
    images: int  # enrolled
    classes: int  # enrolled
    on: str  # what stands for new individuals, for texts
    folder: str | None  # of photographs of other individuals, if it is not the collection itself
    others: int  # images that stand for new individuals
    other_classes: int
    false_acceptances: Share  # share of these within the threshold
    own: int  # enrolled images, each left out, that have another one of their class
    true_acceptances: Share | None  # share of these that find their class within the threshold; None without any

    def __str__(self) -> str:
        wanted = "best accuracy" if self.far is None else f"{_percent(self.far)} false acceptances"
        text = (
            f"Threshold {self.threshold:.4g} ({wanted}), calibrated on {counted(self.others, 'image')} of "
            f"{_classes(self.other_classes)} {self.on}. New individuals: at most {100 * self.expected:.1f} % accepted "
            f"on average, {100 * self.interval[0]:.1f} % to {100 * self.interval[1]:.1f} % with these "
            f"{_classes(self.classes)}"
        )
        if self.far is not None and self.expected > self.far:
            text += f"; a promise of {_percent(self.far)} needs {_needed(self.far)} classes"
        return f"{text}."


def read_calibration(place: Path) -> Calibration | None:
    """The threshold in a collection's folder, or None; DataError for a damaged file."""
    file = place / FILE
    if not file.exists():
        return None
    try:
        return Calibration.model_validate(read_json(file))
    except (DamagedError, ValidationError) as error:
        raise DataError(f"{file}: damaged ({shortened(error, 100)}); delete it, and it is calibrated again") from None


def write_calibration(place: Path, calibration: Calibration) -> None:
    """Keep a threshold, atomically."""
    write_json(place / FILE, calibration.model_dump())


def digest_of(embedded: Embedded) -> str:
    """Digest of the enrolled images: paths, classes, sizes and times."""
    digest = hashlib.sha256()
    for columns in zip(embedded.paths, embedded.classes, embedded.stats.tolist(), strict=True):
        digest.update(json.dumps(columns).encode())
    return digest.hexdigest()[:16]


def why_stale(calibration: Calibration, identity: str, embedded: Embedded) -> str:
    """Why a stored threshold is out of date, or an empty string."""
    if calibration.identity != identity:
        return "the network has changed"
    if calibration.gallery == digest_of(embedded):
        return ""
    return f"the enrolled images have changed: {len(embedded.paths)} now, {calibration.images} with a class then"


def is_out_of_date(place: Path, identity: str, embedded: Embedded) -> bool:
    """Whether a collection's folder has a threshold that has to be calibrated again."""
    kept = read_calibration(place)
    return kept is not None and bool(why_stale(kept, identity, embedded))


TrainedClasses = Callable[[Sequence[str]], set[str]]
"""A function from names of classes to those that a network was trained on."""


class Enrolled:
    """The images of an index that have a class; ``left_out`` are rows of the index."""

    def __init__(self, embedded: Embedded, left_out: Collection[int] = ()) -> None:
        self.embedded = embedded
        names = embedded.classes
        rows = [row for row, name in enumerate(names) if name and row not in left_out]
        self.rows = np.array(rows, dtype=np.int64)
        self.names = sorted({names[row] for row in rows})
        if not self.names:
            raise DataError(
                f"{embedded.folder}: none of {counted(len(embedded.paths), 'image')} of the index has a class, a "
                "sub-folder; type: pml-ext enroll RUN PHOTO... --as NAME"
            )
        self.numbers_of_names = {name: number for number, name in enumerate(self.names)}
        self.numbers = np.array([self.numbers_of_names[names[row]] for row in self.rows], dtype=np.int64)

    def classes(self, nearest: Nearest) -> Classes:
        """The classes, for distances of photographs."""
        return Classes(self.embedded.embeddings[self.rows], self.numbers, len(self.names), nearest)


class _Known(NamedTuple):
    """Enrolled images, each left out of its class."""

    smallest: Distances  # to the nearest class
    right: NDArray[np.bool_]  # whether it is the image's own


class _New(NamedTuple):
    """Images that stand for photographs of new individuals."""

    smallest: Distances  # to the nearest class that is not their own
    numbers: NDArray[np.int64]  # their classes, by numbers of their own
    on: str  # what they are, for texts
    inflation: float  # how much more often the enrolled classes accept than those that were compared


def shared_pictures(embedded: Embedded) -> tuple[set[int], str]:
    """Rows of equal pictures in different classes, and a line that names them, or ""."""
    groups = rows_in_several_classes(embedded.embeddings, embedded.classes)
    if not groups:
        return set(), ""
    first, second = (shortened(embedded.paths[row], 60) for row in groups[0][:2])
    text = f"{first} and {second} are one picture in several classes"
    if len(groups) > 1:
        text += f" (and {counted(len(groups) - 1, 'other')})"
    return {row for group in groups for row in group}, f"{text}: left out when known or new is calibrated"


class Wanted(NamedTuple):
    """The threshold that is asked for."""

    far: float | None  # rate of false acceptances, from 0 to 1; None: the best accuracy
    nearest: Nearest  # whether a class is as near as its center, or as its nearest image
    strict: bool = True  # whether to refuse a rate that so few classes cannot promise, or take the smallest they can


def calibrated(
    enrolled: Enrolled,
    identity: str,
    by: By,
    wanted: Wanted,
    trained: TrainedClasses,
    others: Embedded | None = None,
    refit: WithinClasses | None = None,
) -> Calibration:
    """A threshold for the enrolled images.

    Args:
        enrolled: images and classes, without pictures in several classes.
        identity: of the network.
        by: what images are compared by.
        wanted: the rate of false acceptances, and what a class is.
        trained: a function from class names to those that the network was trained on.
        others: embedded photographs of other individuals; by default enrolled images stand for them.
        refit: fits the head without some classes, or None.

    DataError for too few classes or images, or if the run was trained on all of them.
    """
    far, nearest, _ = wanted
    classes = enrolled.classes(nearest)
    if others is None:
        new = _left_out(enrolled, nearest, trained, refit)
    else:
        new = _of_others(others, enrolled, classes, trained)
    known = _left_out_of_own_class(enrolled, classes)
    other_classes = len(np.unique(new.numbers))
    if far is None:
        threshold = _most_accurate(known, new)
    else:
        threshold = _at_rate(far, new, other_classes, wanted.strict)
    accepted = new.smallest <= threshold
    share = share_of_classes(accepted, new.numbers)
    low, high = (min(1.0, new.inflation * rate) for rate in interval_of(share, other_classes))
    own = len(known.smallest)
    return Calibration(
        threshold=threshold,
        far=far,
        expected=min(1.0, new.inflation * expected_rate(share, other_classes)),
        interval=(low, high),
        nearest=nearest,
        by=by,
        identity=identity,
        gallery=digest_of(enrolled.embedded),
        images=len(enrolled.rows),
        classes=len(enrolled.names),
        on=new.on,
        folder=None if others is None else str(others.folder.resolve()),
        others=len(new.smallest),
        other_classes=other_classes,
        false_acceptances=float(accepted.mean()),
        own=own,
        true_acceptances=float((known.right & (known.smallest <= threshold)).mean()) if own else None,
    )


def _classes(number: int) -> str:
    return "1 class" if number == 1 else f"{number} classes"


def _percent(rate: float) -> str:
    return f"{100 * rate:.3g} %"


def _needed(rate: float) -> int:
    """How many classes can promise a rate: the least C with C / (C² - 1) <= rate."""
    return math.floor(1 / rate) + 1


def _rounded_up(rate: float) -> float:
    digit = 10.0 ** (np.floor(np.log10(rate)) - 1)
    return float(np.ceil(rate / digit) * digit)


def _most_accurate(known: _Known, new: _New) -> float:
    found = known.smallest[known.right]
    if not len(found):
        raise DataError("the best accuracy needs a class of two images or more; type --far 0.05 instead")
    scores = -np.concatenate([found, new.smallest])
    return float(np.clip(-best_threshold(scores, np.arange(len(scores)) < len(found)), 0, 2))


def _at_rate(far: float, new: _New, other_classes: int, strict: bool) -> float:
    """The threshold for a rate, or, unless ``strict``, for a larger possible one."""
    least = new.inflation * expected_rate(0, other_classes)
    if far < least and strict:
        raise DataError(
            f"--far {far:g}: {_classes(other_classes)} can promise {_percent(least)}, and {_percent(far)} needs "
            f"{_needed(far)}; type --far {_rounded_up(least):g}, --radius DISTANCE, or --on FOLDER of "
            "other individuals"
        )
    threshold = threshold_at(max(far, least) / new.inflation, new.smallest, new.numbers)
    assert threshold is not None  # not below the smallest rate
    return threshold


def _left_out(
    enrolled: Enrolled,
    nearest: Nearest,
    trained: TrainedClasses,
    refit: WithinClasses | None,
) -> _New:
    if len(enrolled.names) < 2:
        raise DataError(
            f"{_classes(len(enrolled.names))} enrolled: what is new is calibrated on two or more; type "
            "--radius DISTANCE, or --on FOLDER of other individuals"
        )
    learned = trained(enrolled.names)
    is_new = np.array([name not in learned for name in enrolled.names])
    rows = np.flatnonzero(is_new[enrolled.numbers])
    # Few new classes say less than heads that are refitted without some trained classes.
    if refit is not None and np.count_nonzero(is_new) < FEWEST_REFITTED <= len(learned):
        return _cross_fitted(enrolled, nearest, refit)
    if not len(rows):
        raise DataError(
            f"the run was trained on all {len(enrolled.names)} enrolled classes, so none stands for a new one; type "
            "--on FOLDER (other individuals, a sub-folder each), or --radius DISTANCE"
        )
    rows = rows[sample_indices(len(rows), MOST_QUERIES, seed=0).numpy()]
    numbers = enrolled.numbers[rows]
    points = enrolled.embedded.embeddings[enrolled.rows[rows]]
    on = "left out one by one"
    if learned:
        on += ", whose names the run was not trained on"
    smallest = without_own_class(enrolled.classes(nearest).distances(points), numbers)
    return _New(smallest, numbers, on, inflation_of(len(enrolled.names)))


def _cross_fitted(enrolled: Enrolled, nearest: Nearest, refit: WithinClasses) -> _New:
    """As :func:`_left_out`, with heads that are fitted without the left-out classes."""
    features = refit.features()[enrolled.rows]
    count = len(enrolled.names)
    folds = min(FOLDS, count // 2)
    fold_of_class = np.random.default_rng(0).permutation(np.arange(count) % folds)
    new = []
    numbers = []
    for fold in range(folds):
        held_out = fold_of_class[enrolled.numbers] == fold
        layer = refit.fit(features[~held_out], enrolled.numbers[~held_out])
        with torch.no_grad():
            embeddings = nn.functional.normalize(layer(features))
        classes = Classes(embeddings, enrolled.numbers, count, nearest)
        rows = np.flatnonzero(held_out)
        rows = rows[sample_indices(len(rows), MOST_QUERIES // folds, seed=0).numpy()]
        new.append(without_own_class(classes.distances(embeddings[rows]), enrolled.numbers[rows]))
        numbers.append(enrolled.numbers[rows])
    on = f"left out in {folds} folds, each with a refitted head"
    return _New(np.concatenate(new), np.concatenate(numbers), on, inflation_of(count))


def _of_others(others: Embedded, enrolled: Enrolled, classes: Classes, trained: TrainedClasses) -> _New:
    names = others.classes
    seen = set(enrolled.names) | trained(sorted(set(names)))
    gallery = enrolled.embedded.embeddings[enrolled.rows]
    origins = ["enrolled"] * len(gallery) + ["other"] * len(names)
    groups = rows_in_several_classes(torch.cat([gallery, others.embeddings]), origins)
    equal = {row - len(gallery) for group in groups for row in group}  # pictures that are enrolled, too
    rows = np.array([row for row, name in enumerate(names) if name not in seen and row not in equal], dtype=np.int64)
    if not len(rows):
        raise DataError(
            f"--on {others.folder}: all of its {_classes(len(set(names)))} are enrolled, or the run "
            "was trained on them; wanted photographs of other individuals"
        )
    rows = rows[sample_indices(len(rows), MOST_QUERIES, seed=0).numpy()]
    distances = classes.distances(others.embeddings[rows])
    numbers = np.unique([names[row] for row in rows], return_inverse=True)[1]
    return _New(distances.min(axis=1), numbers, f"of {others.folder}", 1.0)


def _left_out_of_own_class(enrolled: Enrolled, classes: Classes) -> _Known:
    counts = np.bincount(enrolled.numbers)
    rows = np.flatnonzero(counts[enrolled.numbers] > 1)
    rows = rows[sample_indices(len(rows), MOST_QUERIES, seed=1).numpy()]
    numbers = enrolled.numbers[rows]
    if not len(rows):
        return _Known(np.empty(0), np.empty(0, dtype=np.bool_))
    distances = classes.distances(enrolled.embedded.embeddings[enrolled.rows[rows]], rows.tolist())
    return _Known(distances.min(axis=1), distances.argmin(axis=1) == numbers)
