"""Embedded images of a folder, or vectors of a file."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from pml_ext_train.data import AS_KEPT, FolderRules
from pml_ext_train.files import path_bytes, write_atomically
from pml_ext_train.retrieval import Numbers

from .class_folders import ClassFolders
from .state import crc_of


def _unknown() -> Numbers:
    return np.empty(0, dtype=np.int64)


@dataclasses.dataclass(frozen=True)
class Embedded:
    """Images of a folder, or vectors of a file, with embeddings; unknown arrays are empty."""

    folder: Path  # or the file of vectors
    paths: Sequence[str]  # relative to the folder; ids of vectors
    embeddings: Tensor  # [N, D], of length 1
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)  # why a file is not a readable image, by path
    stats: Numbers = dataclasses.field(default_factory=_unknown)  # sizes and fingerprints, [N, 2]; see Image
    new: int | None = None  # how many were embedded now
    numbers: Numbers = dataclasses.field(default_factory=_unknown)  # numbers of the vectors in the collection, [N]
    ids: Numbers = dataclasses.field(default_factory=_unknown)  # of images of an index, [N]
    unlisted: Sequence[str] = ()  # unreadable folders and files
    rules: FolderRules = AS_KEPT  # which files of the folder are read
    class_numbers: Numbers = dataclasses.field(default_factory=_unknown)  # of vectors, in class_names, [N]
    class_names: tuple[str, ...] | None = None  # of vectors
    class_folders: ClassFolders = dataclasses.field(default_factory=ClassFolders)  # of images

    @property
    def classes(self) -> Sequence[str]:
        """The class of each image or vector, an empty string without one."""
        if self.class_names is None:
            return [self.class_folders.class_of(path) for path in self.paths]
        return [self.class_names[number] for number in self.class_numbers]

    @property
    def checksums(self) -> Numbers:
        """The checksum of each row, ``[N]``: id, path, class, size, fingerprint and vector."""
        vectors = self.embeddings.cpu().numpy()
        columns = (self.ids.tolist(), self.paths, self.classes, self.stats.tolist(), vectors)
        rows = zip(*columns, strict=True)
        return np.array([crc_of(row.data, id, path_bytes(path), name, *stat) for id, path, name, stat, row in rows])


def save_embeddings(embedded: Embedded, path: Path) -> None:
    """Write an ``.npz`` file: embeddings, paths and classes, or ids and labels of vectors."""
    arrays: dict[str, Any] = {"embeddings": embedded.embeddings.cpu().numpy()}
    if embedded.class_names is None:
        arrays |= {"paths": np.array(embedded.paths), "classes": np.array(embedded.classes)}
    else:
        arrays["ids"] = np.array(embedded.paths)
        if any(embedded.classes):
            arrays["labels"] = np.array(embedded.classes)
    path.parent.mkdir(parents=True, exist_ok=True)

    def save(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.savez(file, **arrays)

    write_atomically(path, save)
