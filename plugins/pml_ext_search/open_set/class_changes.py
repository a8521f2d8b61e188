"""Changes of enrolled classes: renamed, joined, removed, and each undone. Files are moved and never deleted."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pml_ext.errors import ConfigError, DataError, unknown
from pml_ext_train.data import IMAGE_ENDINGS
from pml_ext_train.files import as_spelled, check_writable, composed

from ..collection.class_folders import ClassFolders
from .class_moves import Move, planned
from .enrolled_folder import EnrolledFolder

if TYPE_CHECKING:
    from ..query.search_index import SearchIndex

REMOVED = ".pml-ext-removed"  # in the indexed folder: the photographs of removed classes
Option = Literal["--rename", "--join", "--remove"]


@dataclasses.dataclass(frozen=True)
class ClassChange:
    """What was moved from one class to another."""

    old: str
    new: str  # "" for a class that is removed
    photographs: int
    missing: int  # files of an undone change that are no longer where it moved them
    folder: str  # that they are in now
    images: int  # of the index now
    undo: str  # the command that moves them back


def undo_change(search_index: SearchIndex, number: int) -> ClassChange:
    """Move the photographs of a change back, as far as they are where it moved them."""
    enrolled = EnrolledFolder(search_index)
    with enrolled.locked() as moves:
        if moves and moves[-1].undoes == number:  # by a killed command
            return _result(search_index, enrolled, moves)
        if not 1 <= number <= len(moves):
            raise ConfigError(f"--undo {number}: there is no such change; {len(moves)} were made so far")
        undone = moves[number - 1]
        there = [pair for pair in undone.files if os.path.lexists(enrolled.root / pair[1])]
        if not there:
            raise DataError(f"--undo {number}: its photographs have been moved since; undo the later changes first")
        targets, files = ([enrolled.root / path for path in paths] for paths in zip(*there, strict=True))
        moves.append(Move(undone.new, undone.old, planned(files, targets, enrolled.root), undoes=number))
        enrolled.carry_out(moves, moves[-1])
        return _result(search_index, enrolled, moves)


def change_class(search_index: SearchIndex, option: Option, old: str, new: str = "") -> ClassChange:
    """Rename a class, join it with another one, whose name stays, or remove it.

    ``new`` has the class to join, and is empty for a removed class. A repeated call goes on after a kill.
    """
    old, new = composed(old), composed(new)
    enrolled = EnrolledFolder(search_index)
    with enrolled.locked() as moves:
        embedded = search_index.indexed_images()
        classes = sorted({*embedded.classes} - {""})
        if old not in classes:
            if moves and (moves[-1].old, moves[-1].new) == (old, new):  # by a killed command
                return _result(search_index, enrolled, moves)
            raise ConfigError(f"{option} {old}: {unknown('class', old, classes)}")
        places = dict(_folders_of(enrolled, old))
        if option == "--remove":
            others = [path for path, name in zip(embedded.paths, embedded.classes, strict=True) if name != old]
            _check_others(enrolled, old, others)
        elif option == "--join":
            _check_joined(old, new, classes)
        else:
            new_place = enrolled.new_place(new, option, list(places))
            again = _command(search_index, "--join", old, new)
            _check_free(new_place, old, new, list(places), f"to join the two, type: {again}")

        files: list[Path] = []
        targets: list[Path] = []
        has_own_folders = enrolled.class_folders.levels == 1 + old.count("/")
        for place, listed in places.items():
            target = enrolled.root / REMOVED / listed
            if option != "--remove":
                target = enrolled.root / as_spelled(enrolled.root, listed.removesuffix(old) + new)
            for file in _files_in(place, has_own_folders):
                files.append(file)
                targets.append(target / file.relative_to(place))
        if not files:
            raise DataError(f"{option} {old}: its photographs are not files below {enrolled.root}; index it again")
        for folder in {file.parent for file in files}:
            check_writable("", folder)
        moves.append(Move(old, new, planned(files, targets, enrolled.root)))
        enrolled.carry_out(moves, moves[-1])
        return _result(search_index, enrolled, moves)


def _check_joined(old: str, new: str, classes: Sequence[str]) -> None:
    if new not in classes:
        raise ConfigError(f"--join {old} {new}: {unknown('class', new, classes)}")
    if new == old:
        raise ConfigError(f"--join {old} {new}: this is one class; name two")


def _check_free(place: Path, old: str, new: str, own: Sequence[Path], remedy: str) -> None:
    """ConfigError unless a place is free, or an empty folder."""
    if not os.path.lexists(place):
        return
    if any(place.samefile(folder) for folder in own) and old != new:
        raise ConfigError(f"--rename {old} {new}: names differ only in case here; type a third name first, then {new}")
    if place.is_symlink() or not place.is_dir() or any(place.iterdir()):
        raise ConfigError(f"--rename {old} {new}: {place} exists; {remedy}")


def _check_others(enrolled: EnrolledFolder, name: str, others: Sequence[str]) -> None:
    """ConfigError if no image, or only one split, would remain without a class."""
    class_folders = enrolled.class_folders
    if not others:
        raise ConfigError(f"--remove {name}: no other photograph is indexed; enroll others first")
    if ClassFolders.of_paths(others, class_folders.levels) != class_folders:
        raise ConfigError(f"--remove {name}: train and test would not both have photographs; enroll others first")


def _folders_of(enrolled: EnrolledFolder, name: str) -> Iterator[tuple[Path, str]]:
    """The folders of a class, in all spellings, each with its path as the class is named."""
    for listed in enrolled.class_folders.places_of(name):
        folders = [enrolled.root]
        for part in listed.split("/"):
            inside = [path for folder in folders for path in folder.iterdir() if composed(path.name) == part]
            folders = [path for path in inside if path.is_dir() and not path.is_symlink()]
        for folder in folders:
            yield folder, listed


def _files_in(place: Path, with_folders: bool) -> list[Path]:
    """All files of a folder, hidden ones and links too."""
    found = []
    for folder, inside, names in os.walk(place):
        links = [name for name in inside if os.path.islink(os.path.join(folder, name))]
        found += [Path(folder, name) for name in (*names, *links)]
        if not with_folders:
            break
    return sorted(found)


def _command(search_index: SearchIndex, *arguments: str) -> str:
    return search_index.collection.command_of("enroll", *arguments)


def _result(search_index: SearchIndex, enrolled: EnrolledFolder, moves: Sequence[Move]) -> ClassChange:
    """The last change."""
    move = moves[-1]
    photographs = [new for _, new in move.files if new.lower().endswith(IMAGE_ENDINGS)]
    folders = [str((enrolled.root / new).parent) for _, new in move.files]
    return ClassChange(
        old=move.old,
        new=move.new,
        photographs=len(photographs),
        missing=len(moves[move.undoes - 1].files) - len(move.files) if move.undoes else 0,
        folder=os.path.commonpath(folders),
        images=len(search_index.gallery()),
        undo=f"to undo: {_command(search_index, '--undo', str(len(moves)))}",
    )
