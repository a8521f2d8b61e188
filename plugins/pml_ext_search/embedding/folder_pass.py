"""Passes over a folder: images are embedded, or embeddings of other processes are added."""

import contextlib
import os
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from pml_ext.distributed import from_rank_0, from_ranks, num_processes, rank, share_of
from pml_ext.errors import ConfigError, DataError, counted, shortened
from pml_ext_train.data import FolderRules, Listing, list_folder
from pml_ext_train.files import MISSING, FileStat, check_writable, path_bytes
from pml_ext_train.retrieval import RowsOfFolder, Vectors

from ..collection.class_folders import ClassFolders
from ..collection.collection import BY_NAME, DamagedFile, is_below
from ..collection.embedded import Embedded
from .embedding import Batch, ImageEmbedder, SkippedImage
from .reading import READ, Damage, reader, warn_of_excluded

WRITTEN = 1000  # embeddings of a folder are written after this many images
SECONDS = 30.0  # or after this time
_NOT_FINITE = ""  # in place of a reason, for an image whose embedding has NaN or infinity


def _root_of(folder: Path) -> bytes:
    return path_bytes(str(folder.resolve())).rstrip(b"/") + b"/"


class FolderPass:
    """A pass of a network over a folder; under torchrun, each rank embeds a share of the images.

    Images are numbered as listed. What an earlier pass skipped is read and named again only with ``retry_damaged``, or
    if it has changed.
    """

    def __init__(
        self, embedder: ImageEmbedder, folder: Path, retry_damaged: bool = False, rules: FolderRules | None = None
    ) -> None:
        self._embedder = embedder
        self._collection = embedder.collection
        self._folder = folder
        self._retries_damaged = retry_damaged
        self._is_first = rank() == 0
        self._rules, self._listing = from_rank_0(self._listed(rules) if self._is_first else None)
        self._root = _root_of(folder)
        self._keys = [self._root + path_bytes(name) for name in self._listing.names]

    def _listed(self, rules: FolderRules | None) -> tuple[FolderRules, Listing]:
        rules = self._embedder.rules if rules is None else rules
        listing = list_folder(self._folder, rules)
        warn_of_excluded(listing, stacklevel=5)
        return rules, listing

    @contextlib.contextmanager
    def embedded(self, batch_size: int = 256) -> Iterator[Embedded]:
        """Embed the new images of the folder, and lock the collection while the block runs."""
        first = self._is_first
        if first:
            check_writable("--store", self._collection.place)
        with self._collection.locked(self._embedder.replace) if first else contextlib.nullcontext():
            found, gone, damaged = from_rank_0(self._looked_up() if first else None)
            missing = [number for number in range(len(self._keys)) if number not in found and number not in damaged]
            results: dict[int, int | str] = {}
            mine = missing[share_of(len(missing), rank(), num_processes())]
            for part in from_ranks(self._embed_missing(mine, batch_size)):
                results |= part
            vectors, skipped = from_rank_0(self._joined(results, damaged) if first else None)
            new = len(vectors)
            vectors |= found
            if not vectors:
                why = f"; the first: {next(iter(skipped.values()))}" if skipped else ""
                raise DataError(f"{self._folder}: no readable image among {counted(len(skipped), 'file')}{why}")
            yield self._embedded_folder(vectors, skipped, new)
            if num_processes() == 1:
                self._collection.compact(gone)

    def _looked_up(self) -> tuple[dict[int, int], list[bytes], dict[int, str]]:
        """Vector numbers of unchanged images, missing files, and reasons of damaged files."""
        files = dict(zip(self._keys, self._listing.stats, strict=True))
        by_key, absent = self._collection.find(files, self._root)
        found = {number: by_key[key] for number, key in enumerate(self._keys) if key in by_key}
        unlisted = frozenset(self._listing.unlisted)
        gone = [key for key in absent if not is_below(os.fsdecode(key[len(self._root) :]), unlisted)]
        damaged: dict[int, str] = {}
        if not self._retries_damaged:
            known = self._collection.damaged_files(self._root, reader())
            for number, (name, key) in enumerate(zip(self._listing.names, self._keys, strict=True)):
                if key in known and known[key].stat == files[key]:
                    damaged[number] = Damage(f"{self._folder / name}{known[key].why}")
        return found, gone, damaged

    def _embedded_folder(self, vectors: Mapping[int, int], skipped: dict[str, str], new: int) -> Embedded:
        places = sorted(vectors)
        paths = [self._listing.names[place] for place in places]
        numbers = np.array([vectors[place] for place in places], dtype=np.int64)
        return Embedded(
            self._folder,
            paths=paths,
            embeddings=torch.from_numpy(self._collection.vectors_of(numbers)).to(self._embedder.device),
            skipped=skipped,
            stats=np.array([self._listing.stats[place] for place in places], dtype=np.int64),
            new=new,
            numbers=numbers,
            unlisted=self._listing.unlisted,
            rules=self._rules,
            class_folders=ClassFolders.of_paths(paths, self._embedder.class_levels),
        )

    @torch.no_grad()
    def _embed_missing(self, numbers: Sequence[int], batch_size: int) -> dict[int, int | str]:
        """Embed images and write the vectors; return each number, or why it failed."""
        results = dict[int, int | str]()
        waiting = dict[int, Vectors]()
        last = time.perf_counter()

        def write() -> None:
            if not waiting:
                return
            paths = [self._keys[number] for number in waiting]
            stats = [self._listing.stats[number] for number in waiting]
            written = self._collection.append(paths, stats, np.stack(list(waiting.values())))
            results.update(zip(waiting, written.values(), strict=True))
            waiting.clear()

        try:
            for batch in self._batches(numbers, min(batch_size, READ)):
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

    def _batches(self, numbers: Sequence[int], size: int) -> Iterator[Batch]:
        files = {number: self._listing.folder / self._listing.names[number] for number in numbers}
        if self._embedder.computed.caches_features:
            for start in range(0, len(numbers), WRITTEN):
                some = {number: files[number] for number in numbers[start : start + WRITTEN]}
                cached = self._embedder.computed.from_features(some)
                yield {number: row.cpu().numpy() for number, row in cached.items()}
                for number in cached:
                    del files[number]
        remaining = list(files)
        stats = [self._listing.stats[number] for number in remaining]
        for batch in self._embedder.batches_of(list(files.values()), size, stats):
            yield {remaining[place]: row for place, row in batch.items()}

    def _joined(
        self, results: Mapping[int, int | str], damaged: Mapping[int, str]
    ) -> tuple[dict[int, int], dict[str, str]]:
        """Vector numbers of new images, and reasons of skipped files, which are reported."""
        vectors = {number: result for number, result in results.items() if isinstance(result, int)}
        failed = {number: result for number, result in results.items() if isinstance(result, str)}
        not_finite = [number for number, why in failed.items() if why == _NOT_FINITE]
        names = self._listing.names
        new = {names[number]: why for number, why in failed.items() if why != _NOT_FINITE}
        self._embedder.warn_of_skipped(self._keep_skipped({**failed, **damaged}) | new)
        if damaged:
            text = f"{counted(len(damaged), 'damaged image')} of {self._folder} skipped"
            if self._collection.run is not None and self._collection.indexed_folder() == str(self._folder.resolve()):
                text += f"; to name them, type: {self._collection.check_command()}"
            warnings.warn(text, SkippedImage, stacklevel=3)
        if not_finite:
            raise self._embedder.computed.not_finite(
                len(not_finite), len(vectors) + len(not_finite), names[min(not_finite)]
            )
        return vectors, self._listing.others | new | {names[number]: why for number, why in damaged.items()}

    def _keep_skipped(self, failed: Mapping[int, str]) -> dict[str, str]:
        """Record files that are not images; return the reasons of newly found ones."""
        listing = self._listing
        damaged = {number: why for number, why in failed.items() if isinstance(why, Damage)}
        files = dict(self._file(listing.names[number], listing.stats[number], why) for number, why in damaged.items())
        listed = {name: why for name, why in listing.others.items() if name not in listing.unlisted}
        others = dict(self._file(name, MISSING, why) for name, why in listed.items())
        known = {} if self._retries_damaged else self._collection.damaged_files(self._root, BY_NAME)
        self._collection.keep_damaged(self._root, {reader(): files, BY_NAME: others})
        return {
            name: why
            for name, why in listing.others.items()
            if name in listing.unlisted or self._root + path_bytes(name) not in known
        }

    def _file(self, name: str, stat: FileStat, why: str) -> tuple[bytes, DamagedFile]:
        """A file's path in the collection, and its reason without the path as it was typed."""
        return self._root + path_bytes(name), DamagedFile(stat, why.removeprefix(str(self._folder / name)))


@contextlib.contextmanager
def parts_pass(embedder: ImageEmbedder, parts: RowsOfFolder, place: Path, folder: Path | None) -> Iterator[Embedded]:
    """Add new embeddings of complete parts to the collection; lock it while the block runs.

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
    root = _root_of(folder)
    check_writable("--store", collection.place)
    with collection.locked(embedder.replace):
        names: list[str] = []
        stats: list[FileStat] = []
        numbers: list[int] = []
        new = 0
        for part in parts.rows:
            keys = [root + path_bytes(name) for name in part.names]
            found, _ = collection.find(dict(zip(keys, part.stats, strict=True)))
            missing = [row for row, key in enumerate(keys) if key not in found]
            if missing:
                new_keys = [keys[row] for row in missing]
                new_stats = [part.stats[row] for row in missing]
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
        yield Embedded(
            folder,
            paths=names,
            embeddings=torch.from_numpy(collection.vectors_of(every_number)),
            skipped=dict(parts.skipped),
            stats=np.array(stats, dtype=np.int64),
            new=new,
            numbers=every_number,
            rules=embedder.rules,
            class_folders=ClassFolders.of_paths(names, embedder.class_levels),
        )
        collection.compact()
