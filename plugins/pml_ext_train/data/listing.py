"""The images below a folder, without opening them."""

import csv
import errno
import os
import re
import stat
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from pml_ext.errors import DataError

from ..files import FileStat
from .companions import companions_in
from .exclusion import AS_KEPT, Exclusion, FolderRules
from .reading import IMAGE_ENDINGS, pages_of

CLUSTERS_TABLE = "clusters.csv"  # written by pml-ext cluster, beside its contact sheets
CLUSTERS_COLUMNS = ("path", "cluster", "distance_to_center", "class", "sheet")
# Why folders are skipped.
SYSTEM_FOLDER = "a recycle bin or another system folder"
RUN = "the folder of a run, whose figures are not read as images"
LINKED_FOLDER = "a link to a folder, which is not followed"
_GONE = (errno.ENOENT, errno.ELOOP)  # errors of a file that vanished, or of a link that leads nowhere
# Of operating systems, archivers and network drives, in lower case.
_SYSTEM_FOLDERS = (
    *("#recycle", "@recycle", "$recycle.bin", "recycler", ".trashes", "lost+found", "system volume information"),
    *("@eadir", "#snapshot", "__macosx", ".thumbnails"),
)


class Listing(NamedTuple):
    """The visible files below a folder, ordered by path."""

    folder: Path
    names: list[str]  # relative to the folder; ``scan.tif#2`` is a page of a file
    stats: list[FileStat]
    others: dict[str, str]  # path and reason of each entry that is not read as an image
    unlisted: list[str]  # folders and files that could not be examined
    left_out: str = ""  # a line about images that patterns leave out


def list_folder(folder: Path, rules: FolderRules = AS_KEPT) -> Listing:
    """List the images below a folder; only to count pages, some are opened.

    Skips hidden entries, system folders such as recycle bins, linked folders, runs and contact sheets. DataError if
    the patterns of ``rules`` and of the folder's ``.pml-ext-ignore`` leave no image.
    """
    exclusion = Exclusion(folder, rules.exclude or ())
    listing = list_part(folder, exclusion, rules)
    exclusion.check_rest(listing.names)
    return listing._replace(left_out=exclusion.summary)


def list_part(folder: Path, exclusion: Exclusion, rules: FolderRules) -> Listing:
    """List a folder, or a sub-folder of the one that the patterns are relative to."""
    if folder.is_file():
        raise DataError(f"{folder} is a file, not a folder of images. To index a table, type: pml-ext index RUN TABLE")
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    listing = Listing(folder, [], [], {}, [])
    start = f"{folder.relative_to(exclusion.folder).as_posix()}/".removeprefix("./")
    try:
        waiting = _entries(listing, "")
    except OSError as error:
        raise DataError(f"{folder}: cannot be read ({error.strerror or error}); check its permissions") from None
    while waiting:  # no recursion: folders may be nested deeper than Python's stack
        name, entry = waiting.pop()
        try:
            is_folder = entry.is_dir(follow_symlinks=False)
            if exclusion.covers(start + name, is_folder):
                exclusion.folders += is_folder
                exclusion.images += not is_folder and name.lower().endswith(IMAGE_ENDINGS)
            elif is_folder:
                waiting += _entries(listing, name)
            elif why := _no_image(entry):
                listing.others[name] = f"{folder / name}: {why}"
            else:
                about = entry.stat()
                pages = pages_of(folder / name) if rules.pages == "all" else []
                names = [f"{name}#{page}" for page in pages] or [name]
                listing.names.extend(names)
                listing.stats.extend([(about.st_size, about.st_mtime_ns)] * len(names))
        except OSError as error:
            listing.others[name] = f"{folder / name}: cannot be read ({error.strerror or error})"
            if error.errno not in _GONE:
                listing.unlisted.append(name)
    return listing


def _entries(listing: Listing, inside: str) -> list[tuple[str, os.DirEntry[str]]]:
    """Visible entries of a folder with their paths, last first, without our own files and companions."""
    place = listing.folder / inside
    prefix = f"{inside}/" if inside else ""
    system_folders: list[Path] = []
    entries = visible_entries(place, system_folders)
    for path in system_folders:
        listing.others[prefix + path.name] = f"{path}: {SYSTEM_FOLDER}"
    if inside and is_run(place, entries):
        listing.others[inside] = f"{place}: {RUN}"
        return []
    sheets = None
    if CLUSTERS_TABLE in entries:
        sheets = listed_sheets(place / CLUSTERS_TABLE)
    if sheets:
        why = "the table of pml-ext cluster; its contact sheets are not read as images"
        listing.others[prefix + CLUSTERS_TABLE] = f"{place / CLUSTERS_TABLE}: {why}"
        entries = {name: entry for name, entry in entries.items() if name not in {CLUSTERS_TABLE, *sheets}}
    companions: set[str] = set().union(*companions_in(entries).values())
    ordered = sorted(entries.items(), reverse=True)
    return [
        (prefix + name, entry)
        for name, entry in ordered
        if name not in companions or not entry.is_file(follow_symlinks=False)
    ]


def _no_image(entry: os.DirEntry[str]) -> str:
    """Why a file is not read as an image, judged by its name and kind; an empty string if it is."""
    if entry.is_symlink():
        try:
            mode = entry.stat().st_mode
        except OSError as error:
            if error.errno not in _GONE:
                raise
            return "a link to what is not there"
        if stat.S_ISDIR(mode):
            return LINKED_FOLDER
    if not entry.name.lower().endswith(IMAGE_ENDINGS):
        return "not named like an image"
    if stat.S_ISREG(entry.stat().st_mode):
        return ""
    return "not a regular file"


def is_run(place: Path, names: Collection[str]) -> bool:
    """Whether a folder, with these names in it, holds a training run."""
    return "recipe.toml" in names and any(os.path.exists(place / name) for name in ("checkpoints", "records"))


def listed_sheets(table: Path) -> set[str] | None:
    """Contact sheets in a table written by ``pml-ext cluster``; None for another table."""
    if not table.is_file():
        return None
    with table.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        if file.readline().strip() != ",".join(CLUSTERS_COLUMNS):
            return None
        listed = {row[-1] for row in csv.reader(file) if row}
    return {name for name in listed if re.fullmatch(r"cluster-(\d{3,}|rest)\.png", name)}


def is_system_folder(name: str) -> bool:
    """Whether a folder of this name belongs to a system, such as a recycle bin."""
    return name.lower() in _SYSTEM_FOLDERS


def visible_entries(place: Path, system_folders: list[Path]) -> dict[str, os.DirEntry[str]]:
    """Entries of a folder by name, without hidden ones; system folders go into the list."""
    found = {}
    with os.scandir(place) as entries:
        for entry in entries:
            if is_system_folder(entry.name):
                system_folders.append(place / entry.name)
            elif not entry.name.startswith("."):
                found[entry.name] = entry
    return found
