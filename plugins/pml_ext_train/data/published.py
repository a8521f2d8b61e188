"""Published data sets: their archives, their sizes, and checks of their lists."""

import contextlib
import dataclasses
import hashlib
import http.client
import itertools
import os
import shutil
import tarfile
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pml_ext.errors import DataError, UnwritableError, one_line

from ..files import locked_folder
from .images import LabeledImages
from .reading import Box
from .splits import DataSplits

MEANT_FOR = {"train": "training images", "test": "test images", "query": "queries", "gallery": "gallery images"}
EVERYTHING = Box(0, 0, 1e9, 1e9)


def cache_folder(name: str) -> Path:
    """A folder of the user's cache: ``pml_ext/NAME`` in ``$XDG_CACHE_HOME`` or ``~/.cache``.

    UnwritableError for a user without a home folder, as in some containers.
    """
    given = os.environ.get("XDG_CACHE_HOME")
    if given:
        return Path(given) / "pml_ext" / name
    try:
        return Path.home() / ".cache" / "pml_ext" / name
    except RuntimeError:
        raise UnwritableError("there is no home folder for a cache; set HOME or XDG_CACHE_HOME") from None


@dataclasses.dataclass(frozen=True)
class Count:
    """Size of a split; ``images`` is None if the paper does not state it."""

    images: int | None
    classes: int


class Entry(NamedTuple):
    """A listed image; the path is relative to the image folder, box None is the whole image."""

    path: str
    name: str
    box: Box | None = None
    group: str = ""  # a query's own group is left out of its gallery; "" for none


Counts = Mapping[str, Count]
Parts = Mapping[str, Sequence[Entry]]


@dataclasses.dataclass(frozen=True)
class Archive:
    """A published file of a data set."""

    name: str
    megabytes: int
    checksum: str = ""  # MD5 or SHA-256, distinguished by length
    url: str = ""  # a stable, public address for downloads
    unpack: bool = True

    def check(self, path: Path) -> None:
        """Raise DataError if a file does not match the published checksum, if any."""
        if not self.checksum:
            return
        kind = "md5" if len(self.checksum) == 32 else "sha256"
        with path.open("rb") as file:
            found = hashlib.file_digest(file, kind).hexdigest()
        if found != self.checksum:
            raise DataError(
                f"{path}: wrong or incomplete file, because its {kind.upper()} is {found}, not {self.checksum}; delete "
                "it and download it again"
            )


@dataclasses.dataclass(frozen=True)
class DatasetInfo:
    """A published data set."""

    name: str
    title: str
    page: str  # address of the description
    license: str
    archives: tuple[Archive, ...]
    layout: str  # files to read in the set's folder
    counts: Counts
    note: str = ""

    @property
    def downloads(self) -> bool:
        """Whether all archives have an address for downloads."""
        return all(archive.url for archive in self.archives)

    @property
    def place(self) -> Path:
        """The default folder: ``$PML_EXT_DATA/NAME``, or one in the user's cache."""
        set_by_user = os.environ.get("PML_EXT_DATA")
        if set_by_user:
            return Path(set_by_user).expanduser() / self.name
        try:
            return cache_folder(self.name)
        except UnwritableError:
            warnings.warn(
                "there is no home folder for data, so the current folder is used; set PML_EXT_DATA", stacklevel=2
            )
            return Path.cwd() / self.name


def get_archives(about: DatasetInfo, place: Path) -> None:
    """Download missing archives, then check and unpack all; DataError for a bad archive."""
    check_archives(about, place)
    for archive in about.archives:
        path = place / archive.name
        if not path.is_file() and not archive.url:
            raise DataError(
                f"{archive.name} of {about.name} cannot be downloaded by a program; get it from {about.page} and put "
                f"it into {place}"
            )
        if not path.is_file():
            with locked_folder(place):  # wait for another process that downloads it
                if not (place / archive.name).is_file():
                    _download(archive, place)
        if archive.unpack:
            _unpack(path, place)


def check_archives(about: DatasetInfo, root: Path | None = None) -> None:
    """Check the archives in a data set's folder; DataError for a truncated or wrong file."""
    place = about.place if root is None else root.expanduser()
    for archive in about.archives:
        if (place / archive.name).is_file():
            archive.check(place / archive.name)


def _download(archive: Archive, place: Path) -> None:
    from torchvision.datasets.utils import download_url

    part = place / f"{archive.name}.part"
    try:
        part.unlink(missing_ok=True)  # of a download that was killed
        download_url(archive.url, os.fspath(place), part.name)
        archive.check(part)
        os.replace(part, place / archive.name)
    except (OSError, RuntimeError, http.client.HTTPException) as error:
        raise DataError(
            f"{archive.url} cannot be downloaded ({one_line(error)}); try again, or put {archive.name} into {place} "
            "yourself"
        ) from None
    finally:
        with contextlib.suppress(OSError):  # an earlier error says more
            part.unlink(missing_ok=True)


def _unpack(path: Path, place: Path) -> None:
    """Unpack a tar or zip archive; files are moved to the folder once all are read."""
    try:
        with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=place) as temporary:
            if path.suffix == ".zip":
                shutil.unpack_archive(path, temporary)
            else:
                with tarfile.open(path) as tar:
                    tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2 has no filters
                    tar.extractall(temporary, members=_files_and_folders(tar))
            shutil.copytree(temporary, place, copy_function=os.replace, dirs_exist_ok=True)
    except (OSError, tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error) as error:  # ReadError is an OSError
        raise DataError(
            f"{path}: not a readable archive ({one_line(error)}); delete it and download it again"
        ) from None


def _files_and_folders(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Members of an archive; TarError for a link, a device, or a path outside the folder."""
    for member in tar:
        if not (member.isfile() or member.isdir()) or member.name.startswith("/") or ".." in Path(member.name).parts:
            raise tarfile.TarError(f"{member.name} is not a file or folder inside the archive")
        yield member


def find_root(about: DatasetInfo, root: Path | None, wanted: str, inner: Sequence[str] = ()) -> Path:
    """The folder with ``wanted``: ``root`` (default ``about.place``) or an ``inner`` folder."""
    place = about.place if root is None else root.expanduser()
    candidates = [place] + [place / name for name in inner]
    for candidate in candidates:
        if (candidate / wanted).exists():
            return candidate
    state = f"{place} has no {wanted}" if place.is_dir() else f"{place}: no such folder"
    raise DataError(f"{state}; for what to get, and where to put it, type: pml-ext data {about.name}")


def read_lines(path: Path, columns: int, header: int = 0) -> list[list[str]]:
    """Lines of a list, split into columns; the last column may contain blanks."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({one_line(error)}); unpack its archive again") from None
    rows = []
    for number, line in enumerate(lines[header:], header + 1):
        row = [cell.strip() for cell in line.split(maxsplit=columns - 1)]
        if row and len(row) != columns:
            raise DataError(
                f"{path}, line {number}: {line!r} does not have {columns} columns; unpack the archive again"
            )
        if row:
            rows.append(row)
    return rows


def assemble(
    about: DatasetInfo, listed_in: Path, images: Path, parts: Parts, image_size: int, names: Sequence[str] = ()
) -> DataSplits:
    """The splits of a published set; DataError unless lists, files and published counts agree.

    ``listed_in`` is the list's path, for errors; other paths are relative to ``images``. ``names`` are the class names
    by label, by default in the order of the lists.
    """
    check_disjoint(listed_in, images, parts)
    unpacked = " and ".join(archive.name for archive in about.archives if archive.unpack)
    mend = f"unpack {unpacked} again" if unpacked else f"see pml-ext data {about.name}"
    paths = {entry.path for entry in itertools.chain.from_iterable(parts.values())}
    missing = paths - _existing_files(images, paths)
    if missing:
        first = images / min(missing)
        raise DataError(f"{first}: no such file, but {listed_in.name} lists it ({len(missing)} are missing); {mend}")
    for part, entries in parts.items():
        classes = {entry.name for entry in entries}
        check_count(about, part, len(entries), len(classes), listed_in.parent, mend)
    return labeled(images, parts, image_size, names)


def _existing_files(images: Path, paths: set[str]) -> set[str]:
    existing: set[str] = set()
    for folder in {path.rpartition("/")[0] for path in paths}:
        if (images / folder).is_dir():
            existing.update(f"{folder}/{name}".lstrip("/") for name in os.listdir(images / folder))
    return existing


def check_count(about: DatasetInfo, part: str, images: int, classes: int, place: Path, mend: str) -> None:
    """Raise DataError if a split differs from the published numbers."""
    wanted = about.counts[part]
    if classes == wanted.classes and wanted.images in (None, images):
        return
    expected = MEANT_FOR[part]
    why = f"is the list complete? {mend}"
    if wanted.images is not None:
        expected = f"{wanted.images:,} {expected}"
        if images > wanted.images:
            why = f"is this another edition of the set? See pml-ext data {about.name}"
    raise DataError(
        f"{place}: expected {expected} of {wanted.classes:,} classes, found {images:,} of {classes:,}; {why}"
    )


def labeled(
    images: Path, parts: Parts, image_size: int, names: Sequence[str] = (), channels: Literal[1, 3] = 3
) -> DataSplits:
    """Splits of images, with labels from 0; arguments as in :func:`assemble`."""
    listed = dict.fromkeys(entry.name for entry in itertools.chain.from_iterable(parts.values()))
    labels = {name: label for label, name in enumerate(names or listed)}
    splits: dict[str, Any] = {part: labeled_part(images, entries, labels, channels) for part, entries in parts.items()}
    return DataSplits(**splits, image_size=image_size, channels=channels, crop=True)


def labeled_part(
    images: Path, entries: Sequence[Entry], labels: Mapping[str, int], channels: Literal[1, 3]
) -> LabeledImages:
    """Images of a list; ``labels`` maps each class to its label."""
    return LabeledImages(
        images=[images / entry.path for entry in entries],
        labels=[labels[entry.name] for entry in entries],
        class_names=list(labels),
        channels=channels,
        boxes=[entry.box or EVERYTHING for entry in entries] if any(entry.box for entry in entries) else None,
        groups=[entry.group for entry in entries] if any(entry.group for entry in entries) else None,
    )


def check_disjoint(
    listed_in: str | Path, images: Path, parts: Parts, shared_classes: bool = False, advice: str = ""
) -> None:
    """Raise DataError for an image that is listed twice, or a tested training class.

    ``shared_classes`` allows the latter. Paths are relative to ``images``, and compared after normalization; boxes of a
    file are different images.
    """
    folder = os.path.abspath(images)
    seen: dict[tuple[str, Box | None], str] = {}
    for part, entries in parts.items():
        for entry in entries:
            path = os.path.normpath(os.path.join(folder, entry.path))
            image = (path, entry.box)
            if image in seen:
                where = f"in {seen[image]} and in {part}"
                text = f"the image {entry.path} is {where}; delete one of its lines"
                raise DataError(text, source=str(listed_in))
            seen[image] = part
    trained = {entry.name for entry in parts["train"]}
    for part, entries in parts.items():
        if part == "train" or shared_classes:
            continue
        both = trained & {entry.name for entry in entries}
        if both:
            raise DataError(
                f"{len(both)} classes of train are also in {part}, {min(both)} first, but test classes must not be "
                f"trained on: delete their lines in one part{advice}",
                source=str(listed_in),
            )
