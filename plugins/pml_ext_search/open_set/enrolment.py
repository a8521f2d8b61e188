"""Enrolment: photographs of an individual are copied into the indexed folder and indexed."""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pml_ext.errors import ConfigError, DataError, shortened
from pml_ext_train.data import IMAGE_ENDINGS, SPLIT_FOLDERS, Exclusion, list_folder, open_image
from pml_ext_train.files import (
    as_spelled,
    check_writable,
    composed,
    free_name,
    locked_folder,
    sha256_of,
    write_atomically,
    writing,
)
from pml_ext_train.retrieval import Changes

from ..collection.class_folders import ClassFolders
from ..collection.problems import StoreWarning

if TYPE_CHECKING:
    from ..query.search_index import SearchIndex


@dataclasses.dataclass(frozen=True)
class Enrolment:
    """What was added to an index."""

    name: str
    folder: str  # of the individual's photographs
    copied: list[str]  # paths in the index
    there: list[str]  # paths in the index of photographs that had been there
    images: int  # of the index now
    changes: Changes | None  # of the index
    undo: str  # the command that removes the copies, "" for none


def enroll(search_index: SearchIndex, photographs: Sequence[Path], name: str) -> Enrolment:
    """Copy photographs of an individual into the indexed folder and index them.

    The folder is locked. Files appear whole, and the index changes in one transaction, so a repeated call finishes a
    killed one.
    """
    _ = search_index.images  # refuses an index of vectors
    name = composed(name)
    with search_index.gallery().reading() as current:
        index = current.state.index
        assert index is not None  # a gallery that opens has one
        class_folders = index.class_folders
    root = Path(index.folder)
    if not root.is_dir():
        raise DataError(f"{root}: the indexed folder is gone, and enroll copies photographs into it")
    if root == search_index.folder_of_cuts.resolve():
        raise ConfigError(f"{root} has what index cut from a table; add rows to the table, and index it again")
    place = root / as_spelled(root, _folder_of(name, class_folders))
    if Exclusion(root, index.rules.exclude or ()).covers(f"{place.relative_to(root).as_posix()}/photograph.jpg"):
        raise ConfigError(
            f"--as {name}: the patterns of the index leave this folder out; change them first: "
            f"{search_index.collection.index_command('--exclude', 'PATTERN')}"
        )
    _check_twins(root, place)
    check_writable("", place)  # copies belong in the indexed folder
    files = _files_of(photographs)
    for file in files:
        _check_photograph(file)  # before anything is copied
    with locked_folder(root, StoreWarning(f"{root}: another command changes its images; waiting until it is done")):
        copied, there = _copied(files, root, place)
        gallery = search_index.index(factory=index.factory, retry_damaged=False)
    undo = ""
    if copied:
        copies = shlex.join(str(root / path) for path in copied)
        undo = f"to undo: rm -- {copies} && {search_index.collection.command()}"
    return Enrolment(name, str(place), copied, there, len(gallery), gallery.changes, undo)


def _copied(files: Sequence[Path], root: Path, place: Path) -> tuple[list[str], list[str]]:
    """Copy photographs; return the index paths of copies, and of those already there."""
    with writing(place):
        place.mkdir(parents=True, exist_ok=True)
    there_now = [place / name for name in list_folder(place).names]
    known = {sha256_of(path): path.relative_to(root).as_posix() for path in there_now}
    copied: list[str] = []
    there: list[str] = []
    for file in files:
        digest = sha256_of(file)
        if digest in known:
            there.append(known[digest])
            continue
        target = free_name(place / file.name.lstrip("."))  # what is hidden is not indexed
        write_atomically(target, lambda path, file=file: shutil.copy2(file, path))  # type: ignore[misc]
        known[digest] = target.relative_to(root).as_posix()
        copied.append(known[digest])
    return copied, there


def _folder_of(name: str, class_folders: ClassFolders) -> str:
    """The sub-folder of a class; ConfigError for an unsuitable name."""
    folder = f"{SPLIT_FOLDERS[-1]}/{name}" if class_folders.below_splits else name
    parts = name.split("/")
    if not all(part.strip() and not part.startswith(".") for part in parts):
        raise ConfigError(f"--as {shortened(name, 100)!r}: wanted the name of a folder that is not hidden")
    if any(ord(character) < 32 or character == "\\" for character in name):
        raise ConfigError(f"--as {shortened(repr(name), 100)}: wanted a name without line breaks and backslashes")
    if len(os.fsencode(max(parts, key=len))) > 255:
        raise ConfigError(f"--as {shortened(name, 40)}: wanted a name of at most 255 bytes")
    if class_folders.class_of(f"{folder}/photograph.jpg") != name:
        raise ConfigError(
            f"--as {shortened(name, 100)!r}: {class_folders.levels} sub-folder names a class in this index; wanted a "
            "name without /"
        )
    if not class_folders.below_splits and name in SPLIT_FOLDERS:
        raise ConfigError(f"--as {name}: a folder of this name would be part of a split; choose another name")
    return folder


def _check_twins(root: Path, place: Path) -> None:
    """ConfigError if a new folder's name differs from another only in case or outer blanks."""
    if place.is_dir():
        return
    inside = [path for path in (*reversed(place.parents), place) if path.is_relative_to(root)]
    new = next((path for path in inside if not path.is_dir()), place)
    for there in sorted(path.name for path in new.parent.iterdir() if path.is_dir()):
        is_other = there != new.name  # else another process has just made it
        if is_other and composed(there).strip().casefold() == composed(new.name).strip().casefold():
            raise ConfigError(
                f"--as {place.name!r}: nothing is copied, as the class {there!r} reads nearly the same; "
                f"type its name, or first: mkdir -p {shlex.quote(str(place))}"
            )


def _files_of(photographs: Sequence[Path]) -> list[Path]:
    if not photographs:
        raise ConfigError("no photographs to enroll; wanted one or more, or a folder")
    files: dict[Path, Path] = {}  # by their places without links
    for given in photographs:
        found = [given]
        if given.is_dir():
            found = [given / name for name in list_folder(given).names]
            if not found:
                raise DataError(f"{given}: no image in it")
        for file in found:
            files.setdefault(file.resolve(), file)
    return list(files.values())


def _check_photograph(file: Path) -> None:
    """DataError for an unreadable image, or a name that an index would skip."""
    with open_image(file, str(file)) as image:
        image.load()
    if file.suffix.lower() not in IMAGE_ENDINGS:
        raise DataError(f"{file}: an index reads files that end in {', '.join(sorted(IMAGE_ENDINGS))}; rename it")
