"""Embeddings of a large collection as Parquet parts, written by any number of processes and read into an index.

A listing of images is cut into at most 1,024 *segments* of whole batches of 64, independent of the number of parts.
Each segment is written atomically as one Parquet file. A part is a range of segments; see
:meth:`TrainedRun.embed_part`. Two machines may compute the same part: the files are the same.

Columns are ``path``, ``class``, ``size`` (bytes), ``time`` (of modification, ns since 1970; for images in tables
and shards, the CRC-32) and ``embedding`` (float32, of length 1, ``[D]``). The metadata hold the network's identity, the
listing's digest and the skipped files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import io
import itertools
import json
import os
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pml_ext.tool import (
    MISSING,
    ConfigError,
    DataError,
    FileStat,
    check_writable,
    file_stat,
    needs_extra,
    one_line,
    path_bytes,
    shortened,
    write_atomically,
)

from .collection import Embedded, Vectors, class_of
from .embedding import READ, ImageEmbedder, warn_of_skipped
from .reading import Listed, list_folder

with needs_extra("parquet", "embeddings as Parquet"):
    import pyarrow
    import pyarrow.parquet as parquet

FILES = 1024  # maximum number of segments of a listing; in tables each row group is a segment, in tar files each shard
_META = b"pml_ext"


class _ImageBytes(io.BytesIO):
    """The bytes of an image, with its path as name in errors."""

    def __init__(self, content: bytes, name: str) -> None:
        super().__init__(content)
        self.title = name

    def __str__(self) -> str:
        return self.title


@dataclasses.dataclass(frozen=True)
class Segment:
    """The images of one embeddings file: some of a folder, a row group of a table, or a shard."""

    place: str  # path of a folder, a table or a shard, or address of a folder
    names: tuple[str, ...] = ()
    facts: tuple[FileStat, ...] = ()
    group: int = 0  # row group of a table

    @property
    def packed(self) -> bool:
        """Whether the images are packed into one file."""
        return self.place.endswith((".parquet", ".tar"))

    @property
    def files(self) -> list[Path] | None:
        """The paths of images that are local files, else None."""
        if self.packed or "://" in self.place:
            return None
        return [Path(self.place, name) for name in self.names]

    @functools.cached_property
    def digest(self) -> str:
        """Digest of the images' names, sizes and times, computed without reading an image."""
        return _digest([self.names, self.facts, self.group] + [self.place] * self.packed)

    def images(self) -> Iterator[tuple[str, FileStat, Path | _ImageBytes]]:
        """Yield path, size and time, and the file or the bytes of each image."""
        if self.files is not None:
            yield from zip(self.names, self.facts, self.files, strict=True)
        elif "://" in self.place:
            system, root = _filesystem(self.place)
            for name, facts in zip(self.names, self.facts, strict=True):
                with system.open_input_file(f"{root}/{name}") as file:
                    yield name, facts, _ImageBytes(file.read(), name)
        else:
            for name, content in _samples(self.place) if self.place.endswith(".tar") else self._rows():
                stat = len(content), zlib.crc32(content)  # the checksum in place of a time
                yield name, stat, _ImageBytes(content, name)

    def _rows(self) -> Iterator[tuple[str, bytes]]:
        contents = _column(Path(self.place), self.group, "image")
        return zip(self.names, (content or b"" for content in contents), strict=True)


@dataclasses.dataclass(frozen=True)
class Work:
    """A listing, cut into segments."""

    folder: str  # root of the relative paths
    segments: list[Segment]
    others: Mapping[str, str] = dataclasses.field(default_factory=dict)  # why a file of the folder is no image

    @functools.cached_property
    def digest(self) -> str:
        """The digest of the images' names, equal for all parts."""
        return _digest([[segment.names, *[segment.place] * segment.packed] for segment in self.segments])

    def file(self, number: int) -> str:
        """Return the name of a segment's file."""
        return f"embeddings-{number:05d}-of-{len(self.segments):05d}.parquet"

    def part(self, part: int, parts: int) -> range:
        """Return the segment numbers of a part; parts are counted from 1."""
        if not 1 <= part <= parts:
            last = max(1, parts)
            raise ConfigError(f"--part {part}/{parts}: wanted 1/{last} to {last}/{last}")
        count = len(self.segments)
        return range(count * (part - 1) // parts, count * part // parts)

    def pending(self, part: int, parts: int, out: Path, identity: str) -> list[int]:
        """Return a part's segments that are not written, or whose images have changed.

        Create the folder. Raise ConfigError if it has files of another listing or another run.
        """
        numbers = self.part(part, parts)
        check_writable("-o", out)
        file = min(out.glob("embeddings-*.parquet"), default=None)  # parts_pass() checks the others
        if file is not None:
            about = _about(file)
            if (about["identity"], about["listing"]) != (identity, self.digest):
                if about["identity"] != identity:
                    what = "another run"
                else:
                    what = "another listing of images"
                raise ConfigError(f"{file} is of {what}; type -o FOLDER for another folder, or delete {out}")
        out.mkdir(parents=True, exist_ok=True)
        return [number for number in numbers if not self._written(out / self.file(number), number, identity)]

    def _written(self, file: Path, number: int, identity: str) -> bool:
        try:
            about = _about(file)
        except DataError:
            return False
        return (about["identity"], about["segment"]) == (identity, self.segments[number].digest)


def listed(items: Listed, folder: str | Path | None = None) -> Work:
    """List images, without reading them.

    Args:
        items: a folder, or an address of one that pyarrow's file systems know, such as ``s3://bucket/photos``; a
            Parquet table of ``path`` and ``image`` (bytes); tar shards of webdataset, ``photos-{000..015}.tar``; or a
            sequence of paths of images, relative to ``folder``.
        folder: the root of the paths in a sequence; by default their deepest common folder.
    """
    if not isinstance(items, (str, os.PathLike)):
        if not items:
            raise ConfigError("no images are listed; wanted one or more")
        whole = [os.path.join(folder or "", item) for item in items]
        root = Path(folder or os.path.commonpath([os.path.dirname(os.path.abspath(item)) for item in whole])).resolve()
        real = [os.path.join(os.path.realpath(os.path.dirname(item)), os.path.basename(item)) for item in whole]
        names = list(dict.fromkeys(os.path.relpath(item, root).replace(os.sep, "/") for item in real))
        if outside := [name for name in names if ".." in name.split("/")]:
            raise ConfigError(f"{shortened(outside[0], 200)} is not below {root}, the folder of the listed images")
        return _cut(str(root), names, [file_stat(root / name) or MISSING for name in names])
    place = os.fspath(items)
    if place.endswith(".parquet"):
        file = Path(place).resolve()
        groups = range(_read(file).num_row_groups)
        segments = [Segment(str(file), tuple(_column(file, group, "path")), group=group) for group in groups]
        return Work(str(file.parent), segments)
    if place.endswith(".tar"):
        with needs_extra("webdataset", "tar shards"):
            from braceexpand import braceexpand
        shards = [Path(shard).resolve() for shard in braceexpand(place)]
        if gone := [shard for shard in shards if not shard.is_file()]:
            raise DataError(f"{gone[0]}: no such shard")
        segments = [Segment(str(shard), facts=((shard.stat().st_size, 0),)) for shard in shards]
        return Work(str(shards[0].parent), segments)
    if "://" in place:
        return _remote(place.rstrip("/"))
    listing = list_folder(Path(place))
    return _cut(str(Path(place).resolve()), listing.names, listing.facts, listing.others)


def _cut(place: str, names: Sequence[str], facts: Sequence[FileStat], others: Mapping[str, str] | None = None) -> Work:
    if not names:
        raise DataError(f"{place}: no image by its name")
    length = READ * -(-len(names) // (READ * FILES))
    cuts = [slice(start, start + length) for start in range(0, len(names), length)]
    return Work(place, [Segment(place, tuple(names[cut]), tuple(facts[cut])) for cut in cuts], others or {})


def _remote(place: str) -> Work:
    from torchvision.datasets.folder import IMG_EXTENSIONS

    system, root = _filesystem(place)
    try:
        found = system.get_file_info(pyarrow.fs.FileSelector(root, recursive=True))
    except OSError as error:
        raise DataError(f"{place}: cannot be listed ({one_line(error)})") from None
    files = {each.path[len(root) + 1 :]: each for each in found if each.is_file}
    shown = [name for name in files if not any(each.startswith(".") for each in name.split("/"))]
    names = sorted((name for name in shown if name.lower().endswith(IMG_EXTENSIONS)), key=lambda name: name.split("/"))
    return _cut(place, names, [(files[name].size or 0, files[name].mtime_ns or 0) for name in names])


def _filesystem(place: str) -> tuple[Any, str]:
    import pyarrow.fs

    try:
        system, root = pyarrow.fs.FileSystem.from_uri(place)
    except (ValueError, OSError) as error:
        raise ConfigError(f"{place}: no address that pyarrow reads ({one_line(error)})") from None
    return system, root.rstrip("/")


def _column(file: Path, group: int, name: str) -> list[Any]:
    try:
        return _read(file).read_row_group(group, [name])[name].to_pylist()  # type: ignore[no-any-return]
    except (KeyError, pyarrow.ArrowException) as error:
        raise DataError(f"{file}: cannot be read ({one_line(error)})") from None


def _samples(shard: str) -> Iterator[tuple[str, bytes]]:
    with needs_extra("webdataset", "tar shards"):
        import webdataset
    from torchvision.datasets.folder import IMG_EXTENSIONS

    for sample in webdataset.WebDataset(shard, shardshuffle=False, empty_check=False):
        for ending, content in sample.items():
            if f".{ending}".lower() in IMG_EXTENSIONS:
                yield f"{Path(shard).name}/{sample['__key__']}.{ending}", content


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


# Writing


def write_part(embedder: ImageEmbedder, work: Work, part: int, parts: int, out: Path) -> int:
    """Embed a part of a listing; return the number of newly embedded images. See :meth:`TrainedRun.embed_part`."""
    numbers = work.pending(part, parts, out, embedder.collection.identity)
    if part == 1:
        warn_of_skipped(work.others)
    images = 0
    for number, table in tables(embedder, work, numbers):
        write_atomically(out / work.file(number), functools.partial(parquet.write_table, table))
        images += table.num_rows
    return images


def tables(embedder: ImageEmbedder, work: Work, numbers: Sequence[int]) -> Iterator[tuple[int, pyarrow.Table]]:
    """Embed segments; yield the number and the table of each."""
    local = [work.segments[number].files for number in numbers]
    if None in local:
        files = None
    else:
        files = [file for each in local for file in each or ()]
    # One data loader for all segments, since workers take a second to start; segments end at batch boundaries.
    if files is None:
        stream = None
    else:
        stream = embedder.embed_files(files)
    kinds = {"path": pyarrow.string(), "class": pyarrow.string(), "size": pyarrow.int64(), "time": pyarrow.int64()}
    kinds["embedding"] = pyarrow.list_(pyarrow.float32(), embedder.collection.size)
    for number in numbers:
        segment = work.segments[number]
        rows = list[tuple[Any, ...]]()
        skipped = dict[str, str]()
        images = segment.images()
        while batch := [*itertools.islice(images, READ)]:
            points = next(stream or embedder.embed_files([source for *_, source in batch], 0))
            for (name, facts, _), point in zip(batch, points, strict=True):
                if isinstance(point, str):
                    skipped[name] = point
                elif any("\ud800" <= letter <= "\udfff" for letter in name):
                    skipped[name] = f"{name!a}: its name is no UTF-8"
                else:
                    rows.append((name, class_of(name), *facts, point))
        warn_of_skipped(skipped)
        meta: dict[str, Any] = {"identity": embedder.collection.identity, "folder": work.folder, "listing": work.digest}
        meta |= {"segment": segment.digest, "number": number, "segments": len(work.segments), "skipped": skipped}
        schema = pyarrow.schema(kinds.items(), {_META: json.dumps(meta)})
        yield number, pyarrow.Table.from_pylist([dict(zip(kinds, row, strict=True)) for row in rows], schema)


def embeddings_of(table: pyarrow.Table) -> Vectors:
    """Return the embeddings of a table, ``[N, D]``."""
    size = table.schema.field("embedding").type.list_size
    points: Vectors = table["embedding"].combine_chunks().flatten().to_numpy().reshape(-1, size)
    return points


# Reading


def _read(file: Path) -> Any:
    """Open a Parquet file; raise DataError if it is not one."""
    try:
        return parquet.ParquetFile(file)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{file}: no Parquet file, or cut ({one_line(error)}); delete it, and write it again") from None


def _about(file: Path) -> dict[str, Any]:
    """Return the metadata of a file of embeddings."""
    with _read(file) as opened:
        text = (opened.schema_arrow.metadata or {}).get(_META)
    if text is None:
        raise DataError(f"{file}: no embeddings of pml-ext embed --part")
    about: dict[str, Any] = json.loads(text)
    return about


def _whole(place: Path, identity: str) -> dict[Path, dict[str, Any]]:
    """Return the metadata of a complete listing's files; raise DataError if one is missing or of another network."""
    every = {file: _about(file) for file in sorted(place.glob("embeddings-*.parquet"))}
    if not every:
        raise DataError(f"{place}: no embeddings; type: pml-ext embed RUN FOLDER --part 1/1 -o {place}")
    first = min(every)
    for file, about in every.items():
        if about["identity"] != identity:
            raise DataError(f"{file}: of another network, or another state of the run ({about['identity']})")
        if about["listing"] != every[first]["listing"]:
            raise DataError(f"{file}: of another listing of images than {first}; delete one of them")
    wanted = every[first]["segments"]
    found = {about["number"] for about in every.values()}
    if missing := sorted({*range(wanted)} - found):
        text = f"{len(missing):,} of {wanted:,} files are not there, number {missing[0]} first"
        raise DataError(f"{place}: {text}; embed the parts that are missing, or were stopped, again")
    return every


@contextlib.contextmanager
def parts_pass(embedder: ImageEmbedder, place: Path, folder: Path | None) -> Iterator[Embedded]:
    """Add a complete listing's new embeddings to the collection, and lock it while the block runs."""
    every = _whole(place, embedder.collection.identity)
    collection = embedder.collection
    skipped = {name: why for about in every.values() for name, why in about["skipped"].items()}
    folder = folder or Path(every[min(every)]["folder"])
    root = path_bytes(str(folder.resolve())).rstrip(b"/") + b"/"
    check_writable("--store", collection.place)
    with collection.locked(embedder.replace):
        names = list[str]()
        facts = list[FileStat]()
        numbers = list[int]()
        new = 0
        for file in every:
            try:
                with _read(file) as opened:
                    table = opened.read()
            except (OSError, pyarrow.ArrowException) as error:
                raise DataError(f"{file}: damaged ({one_line(error)}); delete it, and embed its part again") from None
            own = table["path"].to_pylist()
            points = embeddings_of(table)
            about = [*zip(table["size"].to_pylist(), table["time"].to_pylist(), strict=True)]
            keys = [root + path_bytes(name) for name in own]
            found = collection.find(dict(zip(keys, about, strict=True)))[0]
            if missing := [row for row, key in enumerate(keys) if key not in found]:
                paths = [keys[row] for row in missing]
                stats_of_missing = [about[row] for row in missing]
                found |= collection.append(paths, stats_of_missing, points[missing])
            names += own
            facts += about
            numbers += [found[key] for key in keys]
            new += len(missing)
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise DataError(f"{place}: {shortened(twice[0], 200)} is there twice; give images names of their own")
        if not names:
            raise DataError(f"{place}: no readable image among {len(skipped)}")
        every_number = np.array(numbers, dtype=np.int64)
        mapped = torch.from_numpy(collection.vectors_of(every_number))
        yield Embedded(folder, names, mapped, skipped, np.array(facts, dtype=np.int64), new, every_number)
        collection.compact()
