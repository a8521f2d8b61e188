"""Fetches archives by checksum, going on where a download broke off, and unpacks them inside their folder alone."""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from ..errors import DataError, one_line
from .published import About, Archive

TIMEOUT = 30  # seconds without a byte after which a connection counts as broken
TRIES = 5  # connections that may break without a byte between them
CHUNK = 1 << 20

Progress = Callable[[str, int, int], None]  # what, bytes so far, bytes in all (0 where unknown)


def get(about: About, place: Path, progress: Progress = lambda what, done, total: None) -> None:
    """Fetches a data set's archives that are not there, and unpacks those that are to be unpacked.

    Args:
        about: the data set.
        place: the folder that they go to; made where it is missing.
        progress: called with what is being fetched or unpacked, and how far that is.

    Raises:
        DataError: no address, a connection that breaks again and again, another checksum, or an archive that cannot be
            read or would write outside of the folder.
    """
    for archive in about.archives:
        path = place / archive.name
        if not path.is_file() and not archive.url:
            raise DataError(
                f"{archive.name} of {about.name} has no address that a program may fetch it from; see {about.page}, "
                f"and put it into {place}"
            )
    for archive in about.archives:
        path = place / archive.name
        if path.is_file():
            check(path, archive)
        else:
            fetch(archive, path, progress)
        if archive.unpack:
            progress(f"unpacking {archive.name}", 0, 0)
            unpack(path, place)


def check_archives(about: About, root: Path | None = None) -> None:
    """Holds the archives that lie in a data set's folder against their checksums.

    Args:
        about: the data set.
        root: the folder; by default the set's own.

    Raises:
        DataError: an archive is cut, or another file.
    """
    place = about.place if root is None else root.expanduser()
    for archive in about.archives:
        if (place / archive.name).is_file():
            check(place / archive.name, archive)


def check(path: Path, archive: Archive) -> None:
    """Raises a :class:`DataError` if a file is not the archive that is meant."""
    if archive.checksum and checksum(path, archive) != archive.checksum:
        raise DataError(
            f"{path}: not the file that is meant, or cut (its checksum differs); delete it and get it again"
        )


def checksum(path: Path, archive: Archive) -> str:
    """The checksum of a file, of the kind that the archive has."""
    kind = "md5" if len(archive.checksum) == 32 else "sha256"
    with path.open("rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()


def fetch(archive: Archive, path: Path, progress: Progress = lambda what, done, total: None) -> None:
    """Downloads an archive; what is there under its name is always whole.

    What has arrived is kept as ``NAME.part`` beside it, and the next attempt goes on from there.

    Args:
        archive: what to fetch.
        path: where to.
        progress: called with its name, the bytes so far and in all.

    Raises:
        DataError: the address cannot be reached, or gives another file.
    """
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _download(archive, part, progress)
    except urllib.error.HTTPError as error:
        raise DataError(
            f"{archive.url}: {error.code} {error.reason}; fetch {archive.name} yourself and put it into {path.parent}"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise DataError(
            f"{archive.url} cannot be downloaded ({reason}); try again, which goes on from where it broke "
            f"off, or fetch {archive.name} yourself and put it into {path.parent}"
        ) from None
    if archive.checksum and checksum(part, archive) != archive.checksum:
        part.unlink()
        raise DataError(
            f"{archive.url}: what was downloaded is not the expected file (its checksum differs); try again"
        )
    os.replace(part, path)


def _download(archive: Archive, part: Path, progress: Progress) -> None:
    """Appends to a file until it is whole; connections that break are made again."""
    failures = 0
    while True:
        start = part.stat().st_size if part.is_file() else 0
        try:
            if _append(archive, part, start, progress):
                return
            problem: Exception = ConnectionError("the connection broke off")
        except urllib.error.HTTPError:
            raise
        except (OSError, http.client.HTTPException) as error:
            problem = error
        gained = part.is_file() and part.stat().st_size > start
        failures = 0 if gained else failures + 1
        if failures >= TRIES:
            raise problem


def _append(archive: Archive, part: Path, start: int, progress: Progress) -> bool:
    """Reads what is missing of a file from one connection; whether it is whole then."""
    request = urllib.request.Request(archive.url, headers={"User-Agent": "pml-ext", "Accept-Encoding": "identity"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416 and start:  # nothing after what is there: whole, or longer than it should be
            return True
        raise
    with response:
        if response.status != 206:  # the server begins anew
            start = 0
        length = response.headers.get("Content-Length")
        total = start + int(length) if length is not None else 0
        with part.open("ab" if start else "wb") as file:
            done = start
            progress(archive.name, done, total)
            while block := response.read(CHUNK):
                file.write(block)
                done += len(block)
                progress(archive.name, done, total)
            file.flush()
            os.fsync(file.fileno())
    return not total or done >= total


def unpack(path: Path, place: Path) -> None:
    """Unpacks a tar or zip archive into a folder; files appear there when the whole archive has been read.

    Args:
        path: the archive.
        place: the folder.

    Raises:
        DataError: the archive is damaged, has names that lead outside of the folder, or does not fit on the disk.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=place) as temporary:
            if path.suffix == ".zip" or zipfile.is_zipfile(path):
                _unpack_zip(path, Path(temporary))
            else:
                _unpack_tar(path, Path(temporary))
            _move(Path(temporary), place)
    except getattr(tarfile, "FilterError", ()) as error:  # Python 3.11.4
        raise DataError(f"{path}: {error}; it would write outside of {place}: do not use this archive") from None
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}: not a readable archive ({one_line(error)}); delete it and get it again") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be unpacked into {place} ({error.strerror or error})") from None


def _unpack_tar(path: Path, place: Path) -> None:
    with tarfile.open(path) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(place, filter="data")
            return
        members = archive.getmembers()  # before Python 3.11.4 nothing is filtered: files and folders alone
        for member in members:
            _check_name(path, member.name, is_link=not (member.isfile() or member.isdir()))
            member.mode = 0o755 if member.isdir() else 0o644
        archive.extractall(place, members)


def _unpack_zip(path: Path, place: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            _check_name(path, name)
        size, free = sum(entry.file_size for entry in archive.infolist()), shutil.disk_usage(place).free
        if size > free:
            raise DataError(f"{path}: needs {size >> 20:,} MB where {free >> 20:,} MB are free; make room on the disk")
        archive.extractall(place)


def _check_name(path: Path, name: str, is_link: bool = False) -> None:
    """Refuses what would be written elsewhere than below the folder, and links, which may lead there."""
    parts = PurePosixPath(name.replace("\\", "/")).parts
    if is_link or ".." in parts or name.startswith(("/", "\\")) or (parts and parts[0].endswith(":")):
        raise DataError(f"{path}: {name!r} would be written outside of its folder: do not use this archive")


def _move(source: Path, place: Path) -> None:
    """Moves the files below a folder to the same paths below another one; older files are replaced."""
    for folder, _, files in os.walk(source):
        target = place / Path(folder).relative_to(source)
        target.mkdir(exist_ok=True)
        for name in files:
            os.replace(Path(folder) / name, target / name)
