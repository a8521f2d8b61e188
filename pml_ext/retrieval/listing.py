"""The files of a folder with what tells whether they have changed: their sizes and times of modification."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .checks import check_images_folder


@dataclasses.dataclass(frozen=True)
class Listing:
    """The visible files below a folder, in the order of their paths, folder by folder.

    Args:
        folder: as the user names it.
        names: of the image files, relative to the folder.
        sizes: of these, in bytes, ``[N]``.
        times: of their last modification, in nanoseconds since 1970, ``[N]``.
        others: ``{name: why}`` of what cannot be an image: by its name, or since a folder cannot be read.
    """

    folder: Path
    names: list[str]
    sizes: NDArray[np.int64]
    times: NDArray[np.int64]
    others: dict[str, str]


def list_folder(folder: Path) -> Listing:
    """Lists a folder without opening a file; hidden files, and what is in hidden or linked folders, are left out.

    Args:
        folder: of images, in sub-folders too.

    Raises:
        DataError: no such folder.
    """
    check_images_folder(folder)
    names: list[str] = []
    facts: list[tuple[int, int]] = []
    others: dict[str, str] = {}
    from torchvision.datasets.folder import IMG_EXTENSIONS  # takes a second, which a query need not

    for name, about in _files(folder, "", others):
        if name.lower().endswith(IMG_EXTENSIONS):
            names.append(name)
            facts.append((about.st_size, about.st_mtime_ns))
        else:
            others[name] = f"{folder / name}: no image by its name"
    columns = np.array(facts, dtype=np.int64).reshape(-1, 2)
    return Listing(folder, names, columns[:, 0].copy(), columns[:, 1].copy(), others)


@dataclasses.dataclass(frozen=True)
class FileFacts:
    """A single file, by which it is known.

    Args:
        place: its path, without links but for its own name.
        size: in bytes; -1 of a file that cannot be looked at.
        time: of its last modification, in nanoseconds since 1970.
    """

    place: str
    size: int
    time: int

    @property
    def is_known(self) -> bool:
        """Whether it could be looked at."""
        return self.size >= 0


def facts_of(files: Sequence[Path]) -> list[FileFacts]:
    """What is known of single files.

    Args:
        files: which need not exist.
    """
    folders: dict[Path, str] = {}
    facts = []
    for path in files:
        place, known = str(path), (-1, -1)
        with contextlib.suppress(OSError, ValueError):  # a path with a zero byte is a ValueError
            if path.parent not in folders:
                folders[path.parent] = os.path.realpath(path.parent)
            place = os.path.join(folders[path.parent], path.name)
            about = path.stat()
            known = (about.st_size, about.st_mtime_ns)
        facts.append(FileFacts(place, *known))
    return facts


def listings_of(files: Sequence[FileFacts]) -> Iterator[tuple[Listing, list[FileFacts]]]:
    """Files as what they are in the folder that has them all; on Windows one for each drive.

    Args:
        files: none twice.
    """
    drives: dict[str, list[FileFacts]] = {}
    for file in files:
        drives.setdefault(os.path.splitdrive(file.place)[0], []).append(file)
    for some in drives.values():
        folder = os.path.commonpath([os.path.dirname(file.place) for file in some])
        names = [file.place[len(folder) :].lstrip(os.sep).replace(os.sep, "/") for file in some]
        sizes, times = np.array([(file.size, file.time) for file in some], dtype=np.int64).T
        yield Listing(Path(folder), names, sizes, times, {}), some


def _files(folder: Path, inside: str, others: dict[str, str]) -> Iterator[tuple[str, os.stat_result]]:
    try:
        entries = sorted(os.scandir(folder / inside), key=lambda entry: entry.name)
    except OSError as error:
        others[inside] = f"{folder / inside}: cannot be read ({error.strerror or error})"
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        name = f"{inside}/{entry.name}" if inside else entry.name
        if entry.is_dir(follow_symlinks=False):
            yield from _files(folder, name, others)
            continue
        try:
            if entry.is_file():
                yield name, entry.stat()
            elif entry.is_symlink():
                to = "a folder, which is not followed" if entry.is_dir() else "what is not there"
                others[name] = f"{folder / name}: a link to {to}"
        except OSError:  # gone meanwhile
            continue
