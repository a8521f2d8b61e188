"""Omniglot, characters of many alphabets: the whole set, and its two small background sets."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import ConfigError, DataError
from .download import get
from .published import MEANT_FOR, About, Archive, Count, Counts, place_of
from .splits import DataSplits, LabeledImages

BACKGROUND, EVALUATION = "images_background.zip", "images_evaluation.zip"
WHOLE = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/"
ABOUT = About(
    name="omniglot",
    title="Omniglot",
    page="https://github.com/brendenlake/omniglot",
    license="MIT",
    archives=(
        Archive(BACKGROUND, 10, "68d2efa1b9178cc56df9314c21c6e718", WHOLE + BACKGROUND, unpack=False),
        Archive(EVALUATION, 7, "6b91aef0f799c5bb55b94e3f2daec811", WHOLE + EVALUATION, unpack=False),
    ),
    layout=f"{BACKGROUND} and {EVALUATION}, not unpacked",
    counts={"train": Count(19_280, 964), "test": Count(13_180, 659)},
)
TRAIN, TEST = "images_background_small1.zip", "images_background_small2.zip"
URL = "https://raw.githubusercontent.com/brendenlake/omniglot/057f034b/python/"
SMALL = About(
    name="omniglot-small",
    title="Omniglot's two small background sets",
    page=ABOUT.page,
    license=ABOUT.license,
    archives=(
        Archive(TRAIN, 1, "f38eb80f801274ac2b4dff5b24289016bfaba4a7d5bb50deebf27104ad6cb8a4", URL + TRAIN, False),
        Archive(TEST, 2, "3ccaa407515a8778e5d0861875af38b17e418f301ad5bb3b5a6b65d901a41c7f", URL + TEST, False),
    ),
    layout=f"{TRAIN} and {TEST}, not unpacked",
    counts={"train": Count(2_720, 136), "test": Count(2_120, 106)},
    note="Downloaded on first use.",
)


Split = Literal["alphabets", "characters"]
ONE_IN = 5  # characters of each alphabet, of which the last is tested with split = "characters"


def omniglot(root: Path | None = None, image_size: int = 28, split: Split = "alphabets") -> DataSplits:
    """Omniglot: 964 characters of 30 alphabets to train, 659 of 20 other alphabets to test, 20 drawings each.

    Ink is bright on a dark ground. The drawings are read into memory when the set is opened. Alphabets are the parents
    of their characters.

    Args:
        root: a folder with ``images_background.zip`` and ``images_evaluation.zip``; ``pml-ext data omniglot`` has the
            default.
        image_size: height and width to resize the 105 x 105 drawings to, in pixels, from 8 to 105.
        split: ``"alphabets"``, or ``"characters"`` for every fifth character of every alphabet to be tested, so that
            each has relatives among the training characters.
    """
    return read(root, image_size, ABOUT.counts, split)


def read(root: Path | None, image_size: int, counts: Counts, split: Split = "alphabets") -> DataSplits:
    """What :func:`omniglot` gives, with other counts.

    Args:
        root: as of :func:`omniglot`.
        image_size: likewise.
        counts: how many images and classes there are to be.
        split: as of :func:`omniglot`.
    """
    _check_size("omniglot", image_size)
    place = place_of(ABOUT, root, BACKGROUND, ["omniglot-py"])
    place_of(ABOUT, place, EVALUATION)
    parts = {}
    for part, name in (("train", BACKGROUND), ("test", EVALUATION)):
        parts[part], names = _read(place / name, image_size, lambda alphabet: True)
        there = Count(len(parts[part]), len(names))
        if there != counts[part]:
            wanted = counts[part]
            raise DataError(
                f"{place / name}: expected {wanted.images:,} {MEANT_FOR[part]} of {wanted.classes:,} classes, found "
                f"{there.images:,} of {there.classes:,}; pml-ext data omniglot --download gets it again"
            )
    return _splits(parts["train"], parts["test"], image_size, split)


def _splits(train: LabeledImages, test: LabeledImages, image_size: int, split: Split) -> DataSplits:
    """The splits, with alphabets as parents."""
    if split not in ("alphabets", "characters"):
        raise ConfigError(f"split of omniglot must be 'alphabets' or 'characters', not {split!r}")
    names = [*train.class_names, *test.class_names]
    parents = {name: [name.partition("/")[0]] for name in names}
    if split == "characters":
        assert isinstance(train.images, torch.Tensor) and isinstance(test.images, torch.Tensor)  # noqa: PT018
        everything = LabeledImages(
            torch.cat([train.images, test.images]),
            np.concatenate([train.labels, test.labels + len(train.class_names)]),
            names,
            channels=1,
        )
        place = {name: number for group in _by_alphabet(names) for number, name in enumerate(group, 1)}
        tested = np.array([place[name] % ONE_IN == 0 for name in names])[everything.labels]
        train, test = everything.subset(~tested), everything.subset(tested)
    return DataSplits(train, test, image_size=image_size, channels=1, parents=parents)


def _by_alphabet(names: list[str]) -> list[list[str]]:
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.partition("/")[0], []).append(name)
    return list(groups.values())


def _check_size(name: str, image_size: int) -> None:
    if not 8 <= image_size <= 105:
        raise ConfigError(f"image_size of {name} must be from 8 to 105 pixels, not {image_size}")


def omniglot_small(root: Path | None = None, image_size: int = 28, split: Split = "alphabets") -> DataSplits:
    """136 characters of five alphabets to train, 106 of three other alphabets to test, 20 drawings each; 2.9 MB.

    Ink is bright on a dark ground. The two files are downloaded once to ``$XDG_CACHE_HOME/pml_ext`` (``~/.cache``), or
    read from ``root``. Trains on all of small1 and tests on the alphabets of small2 that small1 does not have. The
    parent of a character is its alphabet.

    Args:
        root: a folder with ``images_background_small1.zip`` and ``images_background_small2.zip``.
        image_size: height and width to resize the 105 x 105 drawings to, in pixels, from 8 to 105.
        split: ``"alphabets"``, or ``"characters"`` for every fifth character of all eight alphabets to be tested, so
            that each has relatives among the training characters.
    """
    _check_size("omniglot-small", image_size)
    if root is None:
        get(SMALL, SMALL.place)
    folder = SMALL.place if root is None else root
    missing = [name for name in (TRAIN, TEST) if not (folder / name).is_file()]
    if missing:
        state = f"{folder} has no {' and no '.join(missing)}" if folder.is_dir() else f"{folder}: no such folder"
        raise DataError(
            f"{state}; --data wants a folder with {TRAIN} and {TEST} (from {URL}); without --data they are downloaded"
        )
    train, train_names = _read(folder / TRAIN, image_size, lambda alphabet: True)
    seen = {name.partition("/")[0] for name in train_names}
    test, _ = _read(folder / TEST, image_size, lambda alphabet: alphabet not in seen)
    if len(test) == 0:
        raise DataError(f"{folder / TEST} has no alphabet that {TRAIN} does not have; is it a copy of that file?")
    return _splits(train, test, image_size, split)


def _read(path: Path, image_size: int, wanted: Callable[[str], bool]) -> tuple[LabeledImages, list[str]]:
    """The drawings of a zip with entries ``SET/ALPHABET/CHARACTER/FILE.png``."""
    from PIL import Image

    drawings: list[NDArray[np.uint8]] = []
    labels: list[int] = []
    names: dict[str, int] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in sorted(archive.namelist()):
                parts = entry.split("/")
                if len(parts) != 4 or not entry.endswith(".png") or not wanted(parts[1]):
                    continue
                with Image.open(io.BytesIO(archive.read(entry)), formats=["PNG"]) as drawing:
                    small = drawing.convert("L").resize((image_size, image_size), Image.Resampling.BILINEAR)
                drawings.append(255 - np.asarray(small))
                labels.append(names.setdefault(f"{parts[1]}/{parts[2]}", len(names)))
    except (zipfile.BadZipFile, OSError, EOFError, SyntaxError) as error:
        raise DataError(f"{path}: not a readable zip of drawings ({error}); download it again") from None
    if not drawings:
        pixels = torch.zeros(0, 1, image_size, image_size, dtype=torch.uint8)
    else:
        pixels = torch.from_numpy(np.stack(drawings))[:, None]
    return LabeledImages(pixels, labels, list(names), channels=1), list(names)
