"""A pass over a folder, which embeds the images that the collection does not have."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from pml_ext.distributed import from_rank_0, from_ranks, num_processes, rank, share_of
from pml_ext.errors import DataError
from pml_ext_train.data import Listing, list_folder
from pml_ext_train.files import check_writable, path_bytes
from pml_ext_train.retrieval import Vectors

from ..collection.class_folders import ClassFolders
from ..collection.collection import is_below
from ..collection.embedded import Embedded
from .embedding import Batch, ImageEmbedder
from .reading import READ

WRITTEN = 1000  # embeddings of a folder are written after this many images
SECONDS = 30.0  # or after this time
_NOT_FINITE = ""  # in place of a reason, for an image whose embedding has NaN or infinity


class FolderPass:
    """The passes of a network over folders; under torchrun, each rank embeds a share of the images."""

    def __init__(self, embedder: ImageEmbedder) -> None:
        self._embedder = embedder
        self._collection = embedder.collection

    @contextlib.contextmanager
    def embedded(self, folder: Path, batch_size: int = 256) -> Iterator[Embedded]:
        """Embed the new images of a folder, and lock the collection while the block runs."""
        first = rank() == 0
        listing: Listing = from_rank_0(list_folder(folder) if first else None)
        root = path_bytes(str(folder.resolve())).rstrip(b"/") + b"/"
        keys = [root + path_bytes(name) for name in listing.names]
        if first:
            check_writable("--store", self._collection.place)
        with self._collection.locked(self._embedder.replace) if first else contextlib.nullcontext():
            found, gone = from_rank_0(self._find_listed(listing, keys, root) if first else None)
            missing = [number for number, key in enumerate(keys) if key not in found]
            results: dict[int, int | str] = {}
            mine = missing[share_of(len(missing), rank(), num_processes())]
            for part in from_ranks(self._embed_missing(listing, keys, mine, batch_size)):
                results |= part
            vectors, skipped = from_rank_0(self._joined(listing, results) if first else None)

            new = len(vectors)
            for number, key in enumerate(keys):
                if key in found:
                    vectors[number] = found[key]
            if not vectors:
                why = f"; the first: {next(iter(skipped.values()))}" if skipped else ""
                raise DataError(f"{folder}: no readable image among {len(skipped)} files{why}")
            yield self._embedded_folder(folder, listing, vectors, skipped, new)
            if num_processes() == 1:
                self._collection.compact(gone)

    def _find_listed(
        self, listing: Listing, keys: Sequence[bytes], root: bytes
    ) -> tuple[dict[bytes, int], list[bytes]]:
        """Return the vector numbers of unchanged files, and the files that are gone.

        A file below a folder that could not be looked at counts as present.
        """
        files = dict(zip(keys, listing.stats, strict=True))
        found, absent, _ = self._collection.find(files, root)
        unlisted = frozenset(listing.unlisted)
        gone = []
        for key in absent:
            relative_path = os.fsdecode(key[len(root) :])
            if not is_below(relative_path, unlisted):
                gone.append(key)
        return found, gone

    def _embedded_folder(
        self, folder: Path, listing: Listing, vectors: Mapping[int, int], skipped: dict[str, str], new: int
    ) -> Embedded:
        """Return the images whose vectors are in the collection, in the order of the listing."""
        paths = []
        stats = []
        numbers = []
        for place in sorted(vectors):
            paths.append(listing.names[place])
            stats.append(listing.stats[place])
            numbers.append(vectors[place])
        numbers_of_vectors = np.array(numbers, dtype=np.int64)
        return Embedded(
            folder,
            paths=paths,
            embeddings=torch.from_numpy(self._collection.vectors_of(numbers_of_vectors)).to(self._embedder.device),
            skipped=skipped,
            stats=np.array(stats, dtype=np.int64),
            new=new,
            numbers=numbers_of_vectors,
            unlisted=listing.unlisted,
            class_folders=ClassFolders.of_paths(paths, self._embedder.class_levels),
        )

    @torch.no_grad()
    def _embed_missing(
        self, listing: Listing, keys: Sequence[bytes], numbers: Sequence[int], batch_size: int
    ) -> dict[int, int | str]:
        """Embed images and write the vectors; return each vector's number, or the reason for a failure.

        Images are known by their places in the listing. What is embedded when an error occurs is written too.
        """
        results = dict[int, int | str]()
        waiting = dict[int, Vectors]()
        last = time.perf_counter()

        def write() -> None:
            if not waiting:
                return
            paths = [keys[number] for number in waiting]
            stats = [listing.stats[number] for number in waiting]
            written = self._collection.append(paths, stats, np.stack(list(waiting.values())))
            results.update(zip(waiting, written.values(), strict=True))
            waiting.clear()

        try:
            for batch in self._batches(listing, numbers, min(batch_size, READ)):
                for number, row in batch.items():
                    if isinstance(row, str):
                        results[number] = row
                    elif np.isfinite(row).all():
                        waiting[number] = row
                    else:
                        results[number] = _NOT_FINITE
                if len(waiting) >= WRITTEN or time.perf_counter() - last >= SECONDS:
                    write()
                    last = time.perf_counter()
        except BaseException:
            with contextlib.suppress(OSError):  # save finished embeddings; raise the original error
                write()
            raise
        write()
        return results

    def _batches(self, listing: Listing, numbers: Sequence[int], size: int) -> Iterator[Batch]:
        """Yield embeddings by number, first of images whose features are cached."""
        files = {number: listing.folder / listing.names[number] for number in numbers}
        if self._embedder.computed.caches_features:
            for start in range(0, len(numbers), WRITTEN):
                some = {number: files[number] for number in numbers[start : start + WRITTEN]}
                cached = self._embedder.computed.from_features(some)
                yield {number: row.cpu().numpy() for number, row in cached.items()}
                for number in cached:
                    del files[number]
        remaining = list(files)
        stats = [listing.stats[number] for number in remaining]
        for batch in self._embedder.batches_of(list(files.values()), size, stats):
            yield {remaining[place]: row for place, row in batch.items()}

    def _joined(self, listing: Listing, results: Mapping[int, int | str]) -> tuple[dict[int, int], dict[str, str]]:
        """Return the vector numbers of new images and the skipped files; warn about each skipped file."""
        vectors = {}
        not_finite = []
        skipped = dict(listing.others)
        for number, result in results.items():
            if isinstance(result, int):
                vectors[number] = result
            elif result == _NOT_FINITE:
                not_finite.append(number)
            else:
                skipped[listing.names[number]] = result
        self._embedder.warn_of_skipped(skipped)
        if not_finite:
            raise self._embedder.computed.not_finite(
                len(not_finite), len(vectors) + len(not_finite), listing.names[min(not_finite)]
            )
        return vectors, skipped
