"""A pass over embeddings that other processes computed, which adds them to the collection."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from pml_ext.errors import ConfigError, DataError, shortened
from pml_ext_train.files import FileStat, check_writable, path_bytes
from pml_ext_train.retrieval import RowsOfFolder

from ..collection.class_folders import ClassFolders
from ..collection.embedded import Embedded
from .embedding import ImageEmbedder


@contextlib.contextmanager
def parts_pass(embedder: ImageEmbedder, parts: RowsOfFolder, place: Path, folder: Path | None) -> Iterator[Embedded]:
    """Add the new embeddings of complete parts to the collection, and lock it while the block runs.

    ``place`` is the folder of the parts; ``folder`` has the images, by default where they were read.
    """
    collection = embedder.collection
    if folder is None:
        if "://" in parts.folder:
            raise ConfigError(
                f"the images are of {parts.folder}; type: pml-ext index RUN FOLDER --from {place}, where FOLDER has "
                "the images on this machine, or will have"
            )
        folder = Path(parts.folder)
    root = path_bytes(str(folder.resolve())).rstrip(b"/") + b"/"
    check_writable("--store", collection.place)
    with collection.locked(embedder.replace):
        names: list[str] = []
        stats: list[FileStat] = []
        numbers: list[int] = []
        new = 0
        for part in parts.rows:
            keys = [root + path_bytes(name) for name in part.names]
            found, _, _ = collection.find(dict(zip(keys, part.stats, strict=True)))
            missing = []  # rows
            new_keys = []
            new_stats = []
            for row, key in enumerate(keys):
                if key not in found:
                    missing.append(row)
                    new_keys.append(key)
                    new_stats.append(part.stats[row])
            if missing:
                found |= collection.append(new_keys, new_stats, part.embeddings[missing])
            names += part.names
            stats += part.stats
            numbers += [found[key] for key in keys]
            new += len(missing)

        if not names:
            raise DataError(f"{place}: no readable image among {len(parts.skipped)}")
        ((name, count),) = Counter(names).most_common(1)
        if count > 1:
            raise DataError(f"{place}: {shortened(name, 200)} is there twice; give images names of their own")
        every_number = np.array(numbers, dtype=np.int64)
        mapped = torch.from_numpy(collection.vectors_of(every_number))
        yield Embedded(
            folder,
            paths=names,
            embeddings=mapped,
            skipped=dict(parts.skipped),
            stats=np.array(stats, dtype=np.int64),
            new=new,
            numbers=every_number,
            class_folders=ClassFolders.of_paths(names, embedder.class_levels),
        )
        collection.compact()
