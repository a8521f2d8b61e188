"""The rows of a collection's database."""

import functools
import zlib
from typing import Any, NamedTuple

from pydantic import BaseModel

from pml_ext_train.data import AS_KEPT, FolderRules
from pml_ext_train.files import FileStat
from pml_ext_train.networks import By

from .class_folders import ClassFolders


class Index(BaseModel, frozen=True):
    """The images that a query searches."""

    folder: str  # without links; the file of vectors
    images: int
    classes: tuple[str, ...] | None = None  # of vectors, by number; None for images
    class_folders: ClassFolders = ClassFolders()  # of images
    rules: FolderRules = AS_KEPT  # which files of the folder an update reads
    first: int | None  # row of the first vector if they are contiguous
    factory: str = ""  # of faiss; "" for exact search
    effort: int = 0
    recall: float | None = None
    file: str = ""  # of faiss's index, with its size and SHA-256
    bytes: int = 0
    sha256: str = ""


class State(BaseModel, frozen=True):
    """The row of the table ``collection``."""

    run: str
    identity: str
    size: int
    by: By = "embeddings"  # what the vectors are
    cut: int | None = None  # how many of an embedding's first dimensions are kept; None: all
    file: str = "vectors.f32"
    made: int = 0  # nanoseconds since 1970, different for a new collection in the same folder
    vectors: int = 0  # in the file, holes included
    version: int = 0  # raised when the index or the numbers of vectors change
    next_id: int = 0  # never used so far
    index: Index | None = None
    files: tuple[str, ...] = ()  # written or begun, and not deleted since

    @property
    def used_files(self) -> set[str]:
        """The files beside the database that this state uses."""
        if self.index is not None:
            return {self.file, self.index.file} - {""}
        return {self.file}

    @property
    def own_files(self) -> set[str]:
        """All files of the collection beside the database."""
        return {*self.files, *self.used_files}


@functools.lru_cache(16)
def state_of(about: str, crc: int) -> State:
    """Parse the row of the table ``collection``; ValueError if it is damaged."""
    if zlib.crc32(about.encode()) != crc:
        raise ValueError("its checksum does not fit")
    return State.model_validate_json(about)


class Image(NamedTuple):
    """A row of the table ``images``: an indexed image or vector."""

    id: int
    path: str  # relative to the folder; a vector's id
    class_number: int | None  # of a vector, among the index's classes
    size: int  # bytes of the file or the vector
    fingerprint: int  # the file's time of modification, or the vector's CRC-32
    vector: int
    class_name: str

    @property
    def stat(self) -> FileStat:
        """Size and fingerprint."""
        return self.size, self.fingerprint


def crc_of(vector: Any, *values: object) -> int:
    """CRC-32 of a row's values and its vector, without the vector's number, which may change."""
    return zlib.crc32(vector, zlib.crc32(repr(values).encode()))


def in_shard(path: str) -> str:
    """The path of an image's shard, or its own path outside shards."""
    shard, tar, _ = path.partition(".tar/")
    return shard + tar.rstrip("/")
