"""A user's own embeddings, from a file of vectors, to train a head on."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import torch

from pml_ext.errors import ConfigError, DataError, first_of, shortened

from .images import LabeledImages
from .splits import DataSplits, check_galleries, check_trainable, classes_of_two, divide
from .vector_file import KEYS, VectorFile, read_vectors


def vectors(
    root: Path | None = None,
    path: str = "",
    split: Literal["class", "image"] | None = None,
    train_fraction: float | None = None,
    seed: int | None = None,
) -> DataSplits:
    """Load vectors and their labels from a ``.npz``, ``.parquet`` or ``.safetensors`` file.

    The file has ``embeddings`` ``[N, D]`` and ``labels`` ``[N]``, which are integers or texts. It may have ``ids``,
    ``split`` (``train``, ``test``, ``validation``) and ``groups``: vectors of a query's own group are left out of its
    gallery. A run warns of other keys, which are not used.

    Args:
        root: the folder that ``path`` is relative to.
        path: the file.
        split: of a file without ``split``: ``"class"`` (the default; tested classes are never trained on), or
            ``"image"``, which divides the vectors of each class.
        train_fraction: the share of the classes, or of each class's vectors, to train with; 0.5 by default.
        seed: random seed of the split; 0 by default.

    Raises:
        ConfigError: a setting that is out of its range, or that does not go with the file's own ``split``.
        DataError: the file is missing, or its content is not as described; the text says what was found.
    """
    file = read_vectors((root or Path()) / Path(path).expanduser())
    if file.labels is None:
        raise DataError(f"{file.path}: no labels; training needs the key 'labels', [N], integers or texts")
    whole = LabeledImages(
        images=torch.from_numpy(file.embeddings),
        labels=file.labels,
        class_names=file.class_names,
        ids=file.ids,
        groups=file.groups,
    )
    validation = None
    if file.split is None:
        if len(file.class_names) == 1:
            raise DataError(f"{file.path}: found 1 class, {file.class_names[0]}; wanted two or more")
        train, test = divide(file.path, whole, split, train_fraction, seed)
    else:
        for name, value in (("split", split), ("train_fraction", train_fraction), ("seed", seed)):
            if value is not None:
                raise ConfigError(f"{name}: found {value!r}, and {file.path} has a split of its own; leave one out")
        train = whole.subset(file.split == "train")
        test = whole.subset(file.split == "test")
        if (file.split == "validation").any():
            validation = whole.subset(file.split == "validation")
        check_trainable(file.path, train, test)
    check_galleries(file.path, test, test)
    if classes_of_two(test.labels) == 0:
        raise DataError(
            f"{file.path}: no class has two of the {len(test)} vectors to test with; wanted two or more per class, so "
            "that a query can find its class"
        )
    notes = _notes(file)
    if classes_of_two(train.labels) == 0:
        notes.append(
            f"{file.path}: no class has two of the {len(train)} vectors to train with, so that there are no positive "
            "pairs, which most losses need"
        )
    return DataSplits(train, test, validation=validation, note="; ".join(notes))


def _notes(file: VectorFile) -> list[str]:
    """Return warnings: of keys of a file that are not used, and of vectors that have no direction."""
    notes = []
    if file.unused:
        unused = first_of(file.unused, 8)
        notes.append(f"{file.path}: not used: {unused}; the keys that are used are {', '.join(KEYS)}")
    zero = np.flatnonzero(~file.embeddings.any(axis=1))
    if len(zero):
        notes.append(
            f"{file.path}: {len(zero):,} of {len(file.embeddings):,} vectors are all 0, "
            f"{shortened(file.ids[zero[0]], 100)} first: they have no direction, and are as far from all others"
        )
    return notes
