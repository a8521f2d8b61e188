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


def list_files(files: Sequence[Path]) -> tuple[Listing, list[int]]:
    """Files, each once, as what they are in the folder that has them all; and the number of each of them there.

    A file that cannot be looked at is listed with a size and a time that none has, -1.

    Args:
        files: one or more, on one drive.
    """
    places = [os.path.join(os.path.realpath(path.parent), path.name) for path in files]
    folder = os.path.commonpath([os.path.dirname(place) for place in places])
    names = [place[len(folder) :].lstrip(os.sep).replace(os.sep, "/") for place in places]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    facts = np.full((len(numbers), 2), -1, dtype=np.int64)
    for name, path in zip(names, files, strict=True):
        with contextlib.suppress(OSError):
            about = path.stat()
            facts[numbers[name]] = about.st_size, about.st_mtime_ns
    return Listing(Path(folder), [*numbers], facts[:, 0].copy(), facts[:, 1].copy(), {}), [
        numbers[name] for name in names
    ]


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
        except OSError:  # gone meanwhile
            continue
