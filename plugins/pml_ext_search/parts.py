"""Embeddings of a large collection as Parquet parts, written by any number of processes and read into an index.

A listing of images is cut into at most 1,024 *segments* of whole batches of 64, independent of the number of parts.
Each segment is written atomically as one Parquet file. A part is a range of segments; see
:meth:`TrainedRun.embed_part`. Two machines may compute the same part: the files are the same.

Columns are ``path``, ``class``, ``size`` (bytes), ``time`` (of modification, ns since 1970; for images in tables
and shards, the CRC-32) and ``embedding`` (float32, of length 1, ``[D]``). The metadata hold the network's identity,
whether the rows are embeddings or features, the listing's digest and the skipped files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import io
import itertools
import json
import math
import os
import posixpath
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from pml_ext.tool import (
    IMAGE_ENDINGS,
    MISSING,
    ConfigError,
    DataError,
    FileStat,
    Vectors,
    check_writable,
    file_stat,
    is_inside,
    needs_extra,
    one_line,
    path_bytes,
    share_of,
    shortened,
    write_atomically,
)

from .collection import ClassFolders, Collection, Embedded
from .embedding import READ, ImageEmbedder, warn_of_skipped
from .reading import Listed, list_folder

with needs_extra("parquet", "embeddings as Parquet"):
    import pyarrow
    import pyarrow.parquet as parquet

FILES = 1024  # maximum number of segments of a listing; in tables each row group is a segment, in tar files each shard
_META = b"pml_ext"
_OF_PARTS = "delete it, and write it again"  # remedies for a file that cannot be read
_OF_TABLES = "wanted one Parquet file with the columns path and image (bytes)"


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
    stats: tuple[FileStat, ...] = ()  # sizes and times of the images, or of the file that they are packed into
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
        identified_by: list[Any] = [self.names, self.stats, self.group]
        if self.packed:
            identified_by.append(self.place)
        return _digest(identified_by)

    def images(self) -> Iterator[tuple[str, FileStat, Path | _ImageBytes]]:
        """Yield path, size and time, and the file or the bytes of each image."""
        if self.files is not None:
            yield from zip(self.names, self.stats, self.files, strict=True)
        elif "://" in self.place:
            system, root = _filesystem(self.place)
            for name, stats in zip(self.names, self.stats, strict=True):
                yield name, stats, _ImageBytes(self._content_of(name, system, root), name)
        else:
            samples = _samples(self.place) if self.place.endswith(".tar") else self._rows()
            for name, content in samples:
                stat = (len(content), zlib.crc32(content))  # the checksum in place of a time
                yield name, stat, _ImageBytes(content, name)

    def _content_of(self, name: str, system: Any, root: str) -> bytes:
        """Return the bytes of an image of an address; none if it is gone or private, so that it is skipped."""
        try:
            with system.open_input_file(f"{root}/{name}") as file:
                return file.read()  # type: ignore[no-any-return]
        except (FileNotFoundError, PermissionError):
            return b""
        except OSError as error:
            raise DataError(
                f"{self.place}/{name}: cannot be read ({one_line(error)}); files that were written stay, type the "
                "command again"
            ) from None

    def _rows(self) -> Iterator[tuple[str, bytes]]:
        contents = _column(Path(self.place), self.group, "image")
        for name, content in zip(self.names, contents, strict=True):
            yield name, content or b""


@dataclasses.dataclass(frozen=True)
class Work:
    """A listing, cut into segments."""

    folder: str  # root of the relative paths
    segments: list[Segment]
    others: Mapping[str, str] = dataclasses.field(default_factory=dict)  # why a file of the folder is no image

    @functools.cached_property
    def digest(self) -> str:
        """The digest of the images' names, equal for all parts."""
        identified_by: list[list[Any]] = []
        for segment in self.segments:
            if segment.packed:
                identified_by.append([segment.names, segment.place])
            else:
                identified_by.append([segment.names])
        return _digest(identified_by)

    @functools.cached_property
    def has_split_folders(self) -> bool:
        """Whether the images lie in the folders train and test."""
        names = itertools.chain.from_iterable(segment.names for segment in self.segments)
        return ClassFolders.of_paths(names, levels=None).below_splits

    def file(self, number: int) -> str:
        """Return the name of a segment's file."""
        return f"embeddings-{number:05d}-of-{len(self.segments):05d}.parquet"

    def part(self, part: int, parts: int) -> range:
        """Return the segment numbers of a part; parts are counted from 1."""
        if not 1 <= part <= parts:
            last = max(1, parts)
            raise ConfigError(f"--part {part}/{parts}: wanted 1/{last} to {last}/{last}")
        count = len(self.segments)
        return range(count)[share_of(count, part - 1, parts)]

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
        pending = []
        for number in numbers:
            if not self._written(out / self.file(number), number, identity):
                pending.append(number)
        return pending

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
        return _listed_images(items, folder)
    place = os.fspath(items)
    if place.endswith(".parquet"):
        return _listed_table(Path(place).resolve())
    if place.endswith(".tar"):
        return _listed_shards(place)
    if "://" in place:
        return _listed_address(place.rstrip("/"))
    listing = list_folder(Path(place))
    return _cut(str(Path(place).resolve()), listing.names, listing.stats, listing.others)


def _listed_images(items: Sequence[str | Path], folder: str | Path | None) -> Work:
    if not items:
        raise ConfigError("no images are listed; wanted one or more")
    if folder is not None and "://" in str(folder):
        raise ConfigError(f"--list has files below a folder of this machine, not {folder}")
    paths = [os.path.join(folder or "", item) for item in items]
    if not folder:
        folders = [os.path.dirname(os.path.abspath(item)) for item in items]
        folder = os.path.commonpath(folders)
    root = Path(folder).resolve()

    names: list[str] = []
    for path in paths:
        real_path = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        name = os.path.relpath(real_path, root).replace(os.sep, "/")
        if ".." in name.split("/"):
            raise ConfigError(f"{shortened(name, 200)} is not below {root}, the folder of the listed images")
        names.append(name)
    names = list(dict.fromkeys(names))
    stats = [file_stat(root / name) or MISSING for name in names]
    return _cut(str(root), names, stats)


def _listed_table(file: Path) -> Work:
    segments = []
    stat = file_stat(file) or MISSING
    for group in range(_read(file, _OF_TABLES).num_row_groups):
        names = tuple(_column(file, group, "path"))
        for name in names:
            if not isinstance(name, str) or not is_inside(name):
                found = shortened(repr(name), 100)
                raise DataError(
                    f"{file}: the path {found}; wanted one relative to the folder of the images, cats/1.jpg"
                )
        segments.append(Segment(str(file), names, (stat,), group))
    return Work(str(file.parent), segments)


def _listed_shards(pattern: str) -> Work:
    with needs_extra("webdataset", "tar shards"):
        from braceexpand import braceexpand
    shards = [Path(shard).resolve() for shard in braceexpand(pattern)]
    segments = []
    for shard in shards:
        if not shard.is_file():
            raise DataError(f"{shard}: no such shard")
        segments.append(Segment(str(shard), stats=(file_stat(shard) or MISSING,)))
    return Work(str(shards[0].parent), segments)


def _cut(place: str, names: Sequence[str], stats: Sequence[FileStat], others: Mapping[str, str] | None = None) -> Work:
    if not names:
        raise DataError(f"{place}: no image by its name")
    batches_per_segment = math.ceil(len(names) / (READ * FILES))
    length = READ * batches_per_segment
    segments = []
    for start in range(0, len(names), length):
        end = start + length
        segments.append(Segment(place, tuple(names[start:end]), tuple(stats[start:end])))
    return Work(place, segments, others or {})


def _listed_address(place: str) -> Work:
    system, root = _filesystem(place)
    try:
        found = system.get_file_info(pyarrow.fs.FileSelector(root, recursive=True))
    except OSError as error:
        raise DataError(f"{place}: cannot be listed ({one_line(error)})") from None
    stats: dict[str, FileStat] = {}
    for file in found:
        name = file.path[len(root) + 1 :]
        is_hidden = name.startswith(".") or "/." in name
        if file.is_file and not is_hidden and name.lower().endswith(IMAGE_ENDINGS):
            stats[name] = (file.size or 0, file.mtime_ns or 0)
    names = sorted(stats, key=lambda name: name.split("/"))
    return _cut(place, names, [stats[name] for name in names])


def _filesystem(place: str) -> tuple[Any, str]:
    import pyarrow.fs

    try:
        system, root = pyarrow.fs.FileSystem.from_uri(place)
    except (ValueError, OSError) as error:
        raise ConfigError(f"{place}: no address that pyarrow reads ({one_line(error)})") from None
    return system, root.rstrip("/")


def _column(file: Path, group: int, name: str) -> list[Any]:
    try:
        return _read(file, _OF_TABLES).read_row_group(group, [name])[name].to_pylist()  # type: ignore[no-any-return]
    except (KeyError, pyarrow.ArrowException) as error:
        raise DataError(f"{file}: cannot be read ({one_line(error)})") from None


def _samples(shard: str) -> Iterator[tuple[str, bytes]]:
    with needs_extra("webdataset", "tar shards"):
        import webdataset

    for sample in webdataset.WebDataset(shard, shardshuffle=False, empty_check=False):
        for ending, content in sample.items():
            # the key ends at the first dot of a name: the ending of IMG.2023.jpg is 2023.jpg
            if "." + ending.rpartition(".")[2].lower() in IMAGE_ENDINGS:
                name = posixpath.normpath(f"{sample['__key__']}.{ending}")  # tar keeps ./cats/1.jpg
                yield f"{Path(shard).name}/{name.lstrip('/')}", content


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
    stream = _stream_of_files(embedder, [work.segments[number] for number in numbers])
    columns = {
        "path": pyarrow.string(),
        "class": pyarrow.string(),
        "size": pyarrow.int64(),
        "time": pyarrow.int64(),
        "embedding": pyarrow.list_(pyarrow.float32(), embedder.collection.size),
    }
    class_folders = ClassFolders(levels=embedder.class_levels, below_splits=work.has_split_folders)
    for number in numbers:
        segment = work.segments[number]
        rows: list[dict[str, Any]] = []
        skipped: dict[str, str] = {}
        images = segment.images()
        while batch := list(itertools.islice(images, READ)):
            if stream is None:
                sources = [source for _, _, source in batch]
                points = next(embedder.embed_files(sources, workers=0, with_progress=False))
            else:
                points = next(stream)
            for (name, (size, time), _), point in zip(batch, points, strict=True):
                if isinstance(point, str):
                    skipped[name] = point
                elif not _is_utf8(name):
                    skipped[name] = f"{name!a}: its name is no UTF-8"
                else:
                    row = {"path": name, "class": class_folders.class_of(name), "size": size, "time": time}
                    rows.append({**row, "embedding": point})
        warn_of_skipped(skipped)
        about = {
            "identity": embedder.collection.identity,
            "by": embedder.collection.by,
            "folder": work.folder,
            "listing": work.digest,
            "segment": segment.digest,
            "number": number,
            "segments": len(work.segments),
            "skipped": skipped,
        }
        schema = pyarrow.schema(columns.items(), {_META: json.dumps(about)})
        yield number, pyarrow.Table.from_pylist(rows, schema)


def skipped_of(table: pyarrow.Table) -> str:
    """Return why images of a segment were left out, by name, as JSON."""
    return json.dumps(json.loads(table.schema.metadata[_META])["skipped"])


def _is_utf8(name: str) -> bool:
    """Return whether a path has only characters that can be written as UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _stream_of_files(embedder: ImageEmbedder, segments: Sequence[Segment]) -> Iterator[list[Vectors | str]] | None:
    """Return the embeddings of all segments in batches, read by one data loader; None unless all images are files.

    One loader for all, since workers take a second to start. Segments end where batches end.
    """
    files: list[Path] = []
    for segment in segments:
        if segment.files is None:
            return None
        files += segment.files
    return embedder.embed_files(files)


def embeddings_of(table: pyarrow.Table) -> Vectors:
    """Return the embeddings of a table, ``[N, D]``."""
    size = table.schema.field("embedding").type.list_size
    points: Vectors = table["embedding"].combine_chunks().flatten().to_numpy().reshape(-1, size)
    return points


# Reading


def _read(file: Path, remedy: str = _OF_PARTS) -> Any:
    """Open a Parquet file; raise DataError, with a remedy, if it is not one."""
    try:
        return parquet.ParquetFile(file)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{file}: no Parquet file, or cut ({one_line(error)}); {remedy}") from None


def _about(file: Path) -> dict[str, Any]:
    """Return the metadata of a file of embeddings."""
    with _read(file) as opened:
        text = (opened.schema_arrow.metadata or {}).get(_META)
    if text is None:
        raise DataError(f"{file}: no embeddings of pml-ext embed --part")
    about: dict[str, Any] = json.loads(text)
    return about


def _whole(place: Path, collection: Collection) -> dict[Path, dict[str, Any]]:
    """Return the metadata of a complete listing's files for a collection.

    Raise DataError if one is missing, of another network, or of another of its outputs.
    """
    every = {}
    for file in sorted(place.glob("embeddings-*.parquet")):
        every[file] = _about(file)
    if not every:
        raise DataError(f"{place}: no embeddings; type: pml-ext embed RUN FOLDER --part 1/1 -o {place}")
    first = next(iter(every))
    for file, about in every.items():
        by = about.get("by", "embeddings")
        if by != collection.by:
            raise DataError(f"{file}: the {by} of images, not their {collection.by}; type --by {by}")
        if about["identity"] != collection.identity:
            raise DataError(f"{file}: of another network, or another state of the run ({about['identity']})")
        if about["listing"] != every[first]["listing"]:
            raise DataError(f"{file}: of another listing of images than {first}; delete one of them")
    wanted = every[first]["segments"]
    found = {about["number"] for about in every.values()}
    missing = sorted(set(range(wanted)) - found)
    if missing:
        text = f"{len(missing):,} of {wanted:,} files are not there, number {missing[0]} first"
        raise DataError(f"{place}: {text}; embed the parts that are missing, or were stopped, again")
    return every


@contextlib.contextmanager
def parts_pass(embedder: ImageEmbedder, place: Path, folder: Path | None) -> Iterator[Embedded]:
    """Add a complete listing's new embeddings to the collection, and lock it while the block runs."""
    collection = embedder.collection
    every = _whole(place, collection)
    skipped: dict[str, str] = {}
    for about in every.values():
        skipped |= about["skipped"]
    if folder is None:
        folder_read = next(iter(every.values()))["folder"]
        if "://" in folder_read:
            raise ConfigError(
                f"the images are of {folder_read}; type: pml-ext index RUN FOLDER --from {place}, where FOLDER has the "
                "images on this machine, or will have"
            )
        folder = Path(folder_read)
    root = path_bytes(str(folder.resolve())).rstrip(b"/") + b"/"
    check_writable("--store", collection.place)
    with collection.locked(embedder.replace):
        names: list[str] = []
        stats: list[FileStat] = []
        numbers: list[int] = []
        new = 0
        for file in every:
            part = _read_part(file)
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
            raise DataError(f"{place}: no readable image among {len(skipped)}")
        ((name, count),) = Counter(names).most_common(1)
        if count > 1:
            raise DataError(f"{place}: {shortened(name, 200)} is there twice; give images names of their own")
        every_number = np.array(numbers, dtype=np.int64)
        mapped = torch.from_numpy(collection.vectors_of(every_number))
        yield Embedded(
            folder,
            paths=names,
            embeddings=mapped,
            skipped=skipped,
            stats=np.array(stats, dtype=np.int64),
            new=new,
            numbers=every_number,
            class_folders=ClassFolders.of_paths(names, embedder.class_levels),
        )
        collection.compact()


class _Part(NamedTuple):
    """The rows of a file of embeddings."""

    names: list[str]
    stats: list[FileStat]
    embeddings: Vectors  # [N, D]


def _read_part(file: Path) -> _Part:
    try:
        with _read(file) as opened:
            table = opened.read()
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{file}: damaged ({one_line(error)}); delete it, and embed its part again") from None
    sizes = table["size"].to_pylist()
    times = table["time"].to_pylist()
    return _Part(table["path"].to_pylist(), list(zip(sizes, times, strict=True)), embeddings_of(table))
