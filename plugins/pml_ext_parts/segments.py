"""A listing of images, cut into segments."""

import dataclasses
import functools
import hashlib
import io
import itertools
import json
import posixpath
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pml_ext.distributed import share_of
from pml_ext.errors import ConfigError, DataError, needs_extra, one_line
from pml_ext_train.data import IMAGE_ENDINGS
from pml_ext_train.files import FileStat


class ImageBytes(io.BytesIO):
    """The bytes of an image, named by its path in errors."""

    def __init__(self, content: bytes, name: str) -> None:
        super().__init__(content)
        self.title = name

    def __str__(self) -> str:
        return self.title


@dataclasses.dataclass(frozen=True)
class Segment:
    """The images of one embeddings file: some of a folder, a row group, or a shard."""

    place: str  # path of a folder, a table or a shard, or address of a folder
    names: tuple[str, ...] = ()
    stats: tuple[FileStat, ...] = ()  # sizes and times of the images, or of the file that they are packed into
    group: int = 0  # row group of a table

    @property
    def packed(self) -> bool:
        """Whether the images are in one file."""
        return self.place.endswith((".parquet", ".tar"))

    @property
    def files(self) -> list[Path] | None:
        """The paths of images that are local files, else None."""
        if self.packed or "://" in self.place:
            return None
        return [Path(self.place, name) for name in self.names]

    @functools.cached_property
    def digest(self) -> str:
        """Digest of the images' names, sizes and times."""
        identified_by: list[Any] = [self.names, self.stats, self.group]
        if self.packed:
            identified_by.append(self.place)
        return _digest(identified_by)

    def images(self) -> Iterator[tuple[str, FileStat, Path | ImageBytes]]:
        """Yield path, size and time, and the file or the bytes of each image."""
        if self.files is not None:
            yield from zip(self.names, self.stats, self.files, strict=True)
        elif "://" in self.place:
            system, root = filesystem(self.place)
            for name, stats in zip(self.names, self.stats, strict=True):
                yield name, stats, ImageBytes(self._content_of(name, system, root), name)
        else:
            samples = _samples(self.place) if self.place.endswith(".tar") else self._rows()
            for name, content in samples:
                stat = (len(content), zlib.crc32(content))  # the checksum in place of a time
                yield name, stat, ImageBytes(content, name)

    def _content_of(self, name: str, system: Any, root: str) -> bytes:
        """The bytes of an image at an address; empty if it is gone or private."""
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
        from .tables import column

        contents = column(Path(self.place), self.group, "image")
        return ((name, content or b"") for name, content in zip(self.names, contents, strict=True))


@dataclasses.dataclass(frozen=True)
class Work:
    """A listing, cut into segments."""

    folder: str  # root of the relative paths
    segments: list[Segment]
    others: Mapping[str, str] = dataclasses.field(default_factory=dict)  # why a file of the folder is no image

    @functools.cached_property
    def digest(self) -> str:
        """Digest of the images' names, equal for all parts."""
        return _digest([[each.names, each.place] if each.packed else [each.names] for each in self.segments])

    def names(self) -> Iterator[str]:
        """The path of each image; shards have none before they are read."""
        return itertools.chain.from_iterable(segment.names for segment in self.segments)

    def file(self, number: int) -> str:
        """The name of a segment's file."""
        return f"embeddings-{number:05d}-of-{len(self.segments):05d}.parquet"

    def part(self, part: int, parts: int) -> range:
        """The segment numbers of a part, counted from 1."""
        if not 1 <= part <= parts:
            last = max(1, parts)
            raise ConfigError(f"--part {part}/{parts}: wanted 1/{last} to {last}/{last}")
        count = len(self.segments)
        return range(count)[share_of(count, part - 1, parts)]


def filesystem(place: str) -> tuple[Any, str]:
    """The file system of an address, by pyarrow, and the path in it."""
    with needs_extra("parquet", "images at an address"):
        import pyarrow.fs
    try:
        system, root = pyarrow.fs.FileSystem.from_uri(place)
    except (ValueError, OSError) as error:
        raise ConfigError(f"{place}: no address that pyarrow reads ({one_line(error)})") from None
    return system, root.rstrip("/")


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
