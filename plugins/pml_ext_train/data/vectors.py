"""A user's own vectors, to train a head on."""

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

    The file has ``embeddings`` ``[N, D]`` and ``labels`` ``[N]``, integers or texts. It may have ``ids``, ``split``
    (``train``, ``test``, ``validation``) and ``groups``: a query's own group is left out of its gallery.

    Args:
        root: the folder that ``path`` is relative to.
        path: the file.
        split: without ``split`` in the file: ``"class"`` (the default; test classes are never trained on), or
            ``"image"``, which divides each class.
        train_fraction: share of the classes, or of each class's vectors, to train with; default 0.5.
        seed: random seed of the split; default 0.

    Raises:
        ConfigError: a setting is outside its range, or contradicts the file's own ``split``.
        DataError: the file is missing or has invalid content.
    """
    file = read_vectors((root or Path()) / Path(path).expanduser())
    if file.labels is None:
        raise DataError(f"{file.path}: no labels; training needs the key 'labels', [N], of integers or texts")
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
            raise DataError(f"{file.path}: found 1 class, {file.class_names[0]}; training needs two or more")
        train, test = divide(file.path, whole, split, train_fraction, seed)
    else:
        for name, value in (("split", split), ("train_fraction", train_fraction), ("seed", seed)):
            if value is not None:
                raise ConfigError(f"{name}: found {value!r}, but {file.path} has its own split; remove one of the two")
        train = whole.subset(file.split == "train")
        test = whole.subset(file.split == "test")
        if (file.split == "validation").any():
            validation = whole.subset(file.split == "validation")
        check_trainable(file.path, train, test)
    check_galleries(file.path, test, test)
    if classes_of_two(test.labels) == 0:
        raise DataError(
            f"{file.path}: no class has two of the {len(test)} test vectors, so no query finds its class; add vectors"
        )
    notes = _notes(file)
    if classes_of_two(train.labels) == 0:
        notes.append(
            f"{file.path}: no class has two of the {len(train)} training vectors, so there are no positive pairs, "
            "which most losses need"
        )
    return DataSplits(train, test, validation=validation, note="; ".join(notes))


def _notes(file: VectorFile) -> list[str]:
    notes = []
    if file.unused:
        unused = first_of(file.unused, 8)
        notes.append(f"{file.path}: not used: {unused}; the keys used are {', '.join(KEYS)}")
    zero = np.flatnonzero(~file.embeddings.any(axis=1))
    if len(zero):
        notes.append(
            f"{file.path}: {len(zero):,} of {len(file.embeddings):,} vectors are all 0, "
            f"{shortened(file.ids[zero[0]], 100)} first; they have no direction, so all others are equally far"
        )
    return notes
