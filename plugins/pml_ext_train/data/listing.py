"""The images below a folder, without opening them."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NamedTuple

from pml_ext.errors import DataError

from ..files import FileStat
from .folder import CLUSTERS_TABLE, GONE, SYSTEM_FOLDER, contact_sheets, is_run, visible_entries
from .reading import IMAGE_ENDINGS


class Listing(NamedTuple):
    """The visible files below a folder, in the order of their paths, folder by folder."""

    folder: Path
    names: list[str]
    stats: list[FileStat]
    others: dict[str, str]  # reason why each other file is not read as an image
    unlisted: list[str]  # folders and files that could not be looked at


def list_folder(folder: Path) -> Listing:
    """List a folder without opening its images.

    What is hidden, system folders such as recycle bins, linked folders, runs and contact sheets are skipped.
    """
    if folder.is_file():
        raise DataError(f"{folder}: a file; wanted a folder of images (of a table of images: pml-ext index RUN TABLE)")
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    listing = Listing(folder, [], [], {}, [])
    try:
        waiting = _entries(listing, "")
    except OSError as error:
        raise DataError(f"{folder}: cannot be read ({error.strerror or error})") from None
    while waiting:  # no recursion: folders may be nested deeper than Python's stack
        name, entry = waiting.pop()
        try:
            if entry.is_dir(follow_symlinks=False):
                waiting += _entries(listing, name)
            elif why := _no_image(entry):
                listing.others[name] = f"{folder / name}: {why}"
            else:
                about = entry.stat()
                listing.names.append(name)
                listing.stats.append((about.st_size, about.st_mtime_ns))
        except OSError as error:
            listing.others[name] = f"{folder / name}: cannot be read ({error.strerror or error})"
            if error.errno not in GONE:
                listing.unlisted.append(name)
    return listing


def _entries(listing: Listing, inside: str) -> list[tuple[str, os.DirEntry[str]]]:
    """Return the entries of a folder with their paths, last first, without those that are hidden or our own."""
    place = listing.folder / inside
    system_folders: list[Path] = []
    entries = visible_entries(place, system_folders)
    for path in system_folders:
        name = f"{inside}/{path.name}".lstrip("/")
        listing.others[name] = f"{path}: {SYSTEM_FOLDER}"
    if inside and is_run(place, entries):
        listing.others[inside] = f"{place}: the folder of a run, whose figures are not read as images"
        return []
    sheets = contact_sheets(place, entries)
    if sheets:
        names = {CLUSTERS_TABLE, *sheets}
        listing.others[f"{inside}/{CLUSTERS_TABLE}".lstrip("/")] = (
            f"{place / CLUSTERS_TABLE}: the table of pml-ext cluster, whose contact sheets are not read as images"
        )
        entries = {name: entry for name, entry in entries.items() if name not in names}
    prefix = f"{inside}/" if inside else ""
    ordered = sorted(entries.items(), reverse=True)
    return [(prefix + name, entry) for name, entry in ordered]


def _no_image(entry: os.DirEntry[str]) -> str:
    """Return why a file is not read as an image, by its name and kind; "" if it is."""
    if entry.is_symlink():
        try:
            mode = entry.stat().st_mode
        except OSError as error:
            if error.errno not in GONE:
                raise
            return "a link to what is not there"
        if stat.S_ISDIR(mode):
            return "a link to a folder, which is not followed"
    if not entry.name.lower().endswith(IMAGE_ENDINGS):
        return "no image by its name"
    if stat.S_ISREG(entry.stat().st_mode):
        return ""
    return "not a regular file"
