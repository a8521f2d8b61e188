"""Stores that mirror the index of a collection."""

import re
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from pml_ext import registry
from pml_ext.errors import ConfigError
from pml_ext_train.files import utf8_of
from pml_ext_train.retrieval import Changes, EmbeddedImages, Numbers, RecallSample, Rows, SearchFilter

from .address import masked
from .validation import CheckedStore, open_checked

BATCH = 10_000  # images per batch of a write
_SCHEME = re.compile(r"([a-z][a-z0-9-]+):(.+)", re.DOTALL)  # scheme and address of a store


class MirroredStore(CheckedStore):
    """A store with a copy of an index; ``shown`` is its address without secrets."""

    def __init__(self, store: CheckedStore, shown: str) -> None:
        super().__init__(store._store, store._owner)
        self.shown = shown

    def update(self, images: EmbeddedImages) -> Changes:
        """Write new and changed images, and delete those that are not in the index.

        PluginError if the store then has another number of images.
        """
        ids = images.ids
        vectors = images.embeddings.cpu().numpy()
        checksums = images.checksums
        stored = self.checksums()
        before = np.array([stored.get(id, -1) for id in ids.tolist()], dtype=np.int64)  # -1: not in the store
        differs = np.flatnonzero(before != checksums)
        all_classes = images.classes

        def batches() -> Iterator[Rows]:
            for start in range(0, len(differs), BATCH):
                part: Numbers = differs[start : start + BATCH]
                names, classes = ([utf8_of(texts[place]) for place in part] for texts in (images.paths, all_classes))
                yield Rows(ids[part], checksums[part], names, classes, vectors[part])

        gone = sorted(stored.keys() - set(ids.tolist()))
        for start in range(0, len(gone), BATCH):
            self.delete(gone[start : start + BATCH])
        self.write(batches())  # also without batches: completes a database index that an interrupted write left
        self.check_count(len(ids))
        new = int((before < 0).sum())
        return Changes(new=new, changed=len(differs) - new, gone=len(gone), same=len(ids) - len(differs))

    def recall_at_10(self, images: EmbeddedImages) -> float | None:
        """Recall@10 against exact search on at most 200 images; None for fewer than 2.

        PluginError for an unknown image or a wrong distance.
        """
        if len(images.paths) < 2:
            return None
        places = {id: place for place, id in enumerate(images.ids.tolist())}
        embeddings = images.embeddings.cpu()

        def search(points: Tensor, k: int) -> Tensor:
            rows = []
            for point, found in zip(points.cpu(), self.search(points.cpu().numpy(), k, SearchFilter()), strict=True):
                self.check_ids([result.id for result in found], places)
                row = [places[result.id] for result in found]
                exact = (embeddings[row] - point).norm(dim=1).tolist()
                self.check_distances([result.distance for result in found], exact)
                rows.append(row + [-1] * (k - len(row)))
            return torch.tensor(rows)

        return RecallSample(embeddings).recall_at_10(search)


def open(address: str, identity: str, size: int) -> MirroredStore:
    """Open the table of a network's embeddings at an address such as ``lancedb:DIR``."""
    schemes = registry.values("store")
    # A scheme of two plugins is "entry-point:scheme".
    scheme = next((each for each in schemes if ":" in each and address.startswith(f"{each}:")), "")
    if not scheme:
        named = _SCHEME.fullmatch(address)
        if named is None:
            raise ConfigError(
                f"{masked(address)}: wanted SCHEME:ADDRESS, with one of {', '.join(f'{each}:' for each in schemes)}"
            )
        scheme = named[1]
    place = address.removeprefix(f"{scheme}:")
    return MirroredStore(open_checked(scheme, place, f"pml_ext_{identity}", size), masked(address))
