"""Embeddings in files, written by many processes and read into an index."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..files.stat import FileStat
from .stores import Vectors

if TYPE_CHECKING:
    from ..data import FolderRules, Listing


class FileEmbedder(Protocol):
    """A trained network that can name an image's class."""

    @property
    def identity(self) -> str:
        """Digest of weights, preprocessing and precision."""

    @property
    def by(self) -> str:
        """``"embeddings"``, or ``"features"`` of the trunk."""

    @property
    def size(self) -> int:
        """Length of an embedding."""

    @property
    def rules(self) -> FolderRules:
        """Which files of a folder are read."""

    def embed_files(
        self, files: Sequence[Any], batch_size: int, workers: int | None = None, with_progress: bool = True
    ) -> Iterator[list[Vectors | str]]:
        """Embed paths or open files; yield each batch's embeddings, or why an image is unreadable."""

    def class_namer(self, paths: Iterable[str]) -> Callable[[str], str]:
        """A function from path to class, for a folder with these paths."""

    def warn_of_skipped(self, skipped: Mapping[str, str]) -> None:
        """Warn of each skipped image; reasons contain the path."""


class EmbeddedRows(NamedTuple):
    """Some images of a listing, with embeddings."""

    names: list[str]
    stats: list[FileStat]  # of images in tables and shards: size, and CRC-32 in place of a time
    embeddings: Vectors  # [N, D]


class RowsOfFolder(NamedTuple):
    """Embedded images, some at a time."""

    folder: str  # root of the relative paths
    rows: Iterator[EmbeddedRows]
    skipped: Mapping[str, str]  # why images were left out, if known before the rows are read


class RayWorkers(NamedTuple):
    """Workers of Ray."""

    address: str | None  # of a cluster; None for this machine alone
    jobs: int
    gpus: float  # of each worker


class Written(NamedTuple):
    """What a part has written."""

    images: int  # embedded now
    files: int  # of this part
    files_of_all_parts: int


class PartsService(Protocol):
    """The service ``"parts"``.

    ``images`` is a listing, or the address of a folder such as ``s3://bucket/photos``, of a Parquet table of ``path``
    and ``image`` (bytes), or of tar shards of webdataset, ``photos-{000..015}.tar``.
    """

    def write(self, embedder: FileEmbedder, images: Listing | str, part: int, parts: int, out: Path) -> Written:
        """Embed a part of the images into files."""

    def write_on_ray(
        self,
        embedder: FileEmbedder,
        load: Callable[[], FileEmbedder],
        images: Listing | str,
        part: int,
        parts: int,
        out: Path,
        workers: RayWorkers,
    ) -> Written:
        """Embed with workers of Ray Data; each calls ``load``, a module-level function."""

    def read(self, place: Path, identity: str, by: str) -> RowsOfFolder:
        """Read a folder's files; DataError if one is missing, damaged, or from another network."""

    def embedded(self, embedder: FileEmbedder, images: str) -> RowsOfFolder:
        """Embed images without writing files; warn of skipped ones."""
