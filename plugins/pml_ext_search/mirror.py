"""Stores that mirror the index of a collection: copied, measured and searched."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from pml_ext.tool import ConfigError, path_bytes, printable, shortened

from .collection import Changes, Embedded, Image, crc_of
from .faiss_index import RecallSample
from .query import Answer, QueryOptions, answers_of, utf8_of
from .stores import BATCH, Numbers, Rows, SearchFilter, Store, Vectors

if TYPE_CHECKING:
    from .gallery import Gallery
    from .stores.checked import CheckedStore

SCHEME = re.compile(r"([a-z][a-z0-9-]+):(.+)", re.DOTALL)  # scheme and address of a store


def is_store(text: str) -> bool:
    """Return whether a text is the address of a store, ``SCHEME:ADDRESS``, and not a folder."""
    return bool(SCHEME.fullmatch(text)) and not os.path.isdir(text)


def copy_to_store(embedded: Embedded, store: CheckedStore) -> Changes:
    """Write new and changed images into a store, and delete those that are not in the index.

    PluginError if the store then has another number of images.
    """
    ids = embedded.ids
    vectors = embedded.embeddings.cpu().numpy()
    checksums = _checksums_of(embedded, vectors)
    stored = store.checksums()
    before = np.array([stored.get(id, -1) for id in ids.tolist()], dtype=np.int64)  # -1: not in the store
    differs = np.flatnonzero(before != checksums)
    all_classes = embedded.classes

    def batches() -> Iterator[Rows]:
        for start in range(0, len(differs), BATCH):
            part: Numbers = differs[start : start + BATCH]
            names = [utf8_of(embedded.paths[place]) for place in part]
            classes = [utf8_of(all_classes[place]) for place in part]
            yield Rows(ids[part], checksums[part], names, classes, vectors[part])

    gone = sorted(stored.keys() - set(ids.tolist()))
    for start in range(0, len(gone), BATCH):
        store.delete(gone[start : start + BATCH])
    store.write(batches())  # also without batches: completes a database index that an interrupted write left incomplete
    store.check_count(len(ids))
    new = int((before < 0).sum())
    return Changes(new=new, changed=len(differs) - new, gone=len(gone), same=len(ids) - len(differs))


def _checksums_of(embedded: Embedded, vectors: Vectors) -> Numbers:
    """Return the checksum of each image's id, path, class, size, fingerprint and vector, ``[N]``."""
    checksums = []
    columns = (embedded.ids.tolist(), embedded.paths, embedded.classes, embedded.stats.tolist(), vectors)
    for id, path, class_name, size_and_mtime, vector in zip(*columns, strict=True):
        checksums.append(crc_of(vector.data, id, path_bytes(path), class_name, *size_and_mtime))
    return np.array(checksums)


def recall_of(embedded: Embedded, store: CheckedStore) -> float | None:
    """Return recall@10 of a store against exact search, on a sample of at most 200 images; None for fewer than 2.

    PluginError if the store finds an image that the index does not have, or gives it another distance.
    """
    if len(embedded.paths) < 2:
        return None
    places = {id: place for place, id in enumerate(embedded.ids.tolist())}
    embeddings = embedded.embeddings.cpu()

    def search(points: Tensor, k: int) -> Tensor:
        rows = []
        for point, found in zip(points.cpu(), store.search(points.cpu().numpy(), k, SearchFilter()), strict=True):
            store.check_ids([result.id for result in found], places)
            row = [places[result.id] for result in found]
            exact = (embeddings[row] - point).norm(dim=1).tolist()
            store.check_distances([result.distance for result in found], exact)
            missing = k - len(row)
            rows.append(row + [-1] * missing)
        return torch.tensor(rows)

    return RecallSample(embeddings).recall_at_10(search)


def answers_from(
    store: Store, gallery: Gallery | None, names: Sequence[str], points: Tensor, options: QueryOptions
) -> list[Answer]:
    """Return a store's answers to query embeddings, without the query itself if the gallery has it."""
    where = options.where
    if where.within is not None:
        where = where._replace(within=utf8_of(where.within))
    query_images: list[Image | None] = [None] * len(names)
    if gallery is not None:
        query_images = gallery.images_of(names)
    results = store.search(points.cpu().numpy(), options.k + 1, where)
    of_class = ""
    if where.within is not None:
        of_class = f" of the class {printable(where.within)}"
        if len(points) and not any(results):
            _check_class(store, points, where.within)
    return answers_of(names, query_images, results, options, f"the store gave no more images{of_class}")


def _check_class(store: Store, points: Tensor, name: str) -> None:
    """Raise ConfigError if a store has no image of a class."""
    (any_of_class,) = store.search(points[:1].cpu().numpy(), 1, SearchFilter(name))
    if not any_of_class:
        raise ConfigError(f"--within {shortened(name, 100)}: no image of this class in the store")
