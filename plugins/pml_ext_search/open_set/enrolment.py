"""Enrolment: photographs of an individual are copied into the indexed folder and indexed."""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pml_ext.errors import ConfigError, DataError
from pml_ext_train.data import IMAGE_ENDINGS, Companions, list_folder, open_image
from pml_ext_train.files import composed, first_part, first_parts, free_part, sha256_of, write_atomically, writing
from pml_ext_train.retrieval import Changes

from .enrolled_folder import EnrolledFolder

if TYPE_CHECKING:
    from ..query.search_index import SearchIndex


@dataclasses.dataclass(frozen=True)
class Enrolment:
    """What was added to an index."""

    name: str
    folder: str  # of the individual's photographs
    copied: list[str]  # paths in the index
    there: list[str]  # paths in the index of photographs that had been there
    companions: list[str]  # paths in the indexed folder of files that were copied along
    images: int  # of the index now
    changes: Changes | None  # of the index
    undo: str  # the command that removes the copies, "" for none


def enroll(search_index: SearchIndex, photographs: Sequence[Path], name: str) -> Enrolment:
    """Copy photographs of an individual into the indexed folder and index them.

    The folder is locked. Files appear whole, and the index changes in one transaction, so a repeated call finishes a
    killed one.
    """
    name = composed(name)
    enrolled = EnrolledFolder(search_index)
    files = _files_of(photographs)
    place = enrolled.new_place(name, "--as", names=[_shown(file) for file in files])
    for file in files:
        _check_photograph(file)  # before anything is copied
    with enrolled.locked():
        copies = _copied(files, enrolled.root, place)
        gallery = enrolled.index()
    undo = ""
    if copies.photographs or copies.companions:
        new = shlex.join(str(enrolled.root / path) for path in (*copies.photographs, *copies.companions))
        undo = f"to undo: rm -- {new} && {search_index.collection.command()}"
    return Enrolment(
        name=name,
        folder=str(place),
        copied=copies.photographs,
        there=copies.there,
        companions=copies.companions,
        images=len(gallery),
        changes=gallery.changes,
        undo=undo,
    )


class _Copies(NamedTuple):
    """Paths below the indexed folder."""

    photographs: list[str]
    there: list[str]  # photographs that had been there
    companions: list[str]


def _copied(files: Mapping[Path, Sequence[str]], root: Path, place: Path) -> _Copies:
    """Copy photographs and their companions."""
    with writing(place):
        place.mkdir(parents=True, exist_ok=True)
    there_now = [place / name for name in list_folder(place).names]
    known = {sha256_of(path): path for path in there_now}
    copies = _Copies([], [], [])

    def copy(source: Path, target: Path, copied: list[str]) -> None:
        write_atomically(target, lambda path: shutil.copy2(source, path))
        copied.append(target.relative_to(root).as_posix())

    for file, companions in files.items():
        digest = sha256_of(file)
        if digest in known:
            copies.there.append(known[digest].relative_to(root).as_posix())
        else:
            shown = _shown(file)
            part = first_part(shown)
            known[digest] = place / (free_part(part, first_parts(place)) + shown.removeprefix(part))
            copy(file, known[digest], copies.photographs)
        target = known[digest]
        for name in companions:
            beside = target.with_name(target.stem + name.removeprefix(file.stem))
            if not os.path.lexists(beside):
                copy(file.with_name(name), beside, copies.companions)
    return copies


def _shown(file: Path) -> str:
    return file.name.lstrip(".")  # what is hidden is not indexed


def _files_of(photographs: Sequence[Path]) -> dict[Path, list[str]]:
    """Photographs with the names of their companions, which may also be given themselves."""
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
    companions = Companions()
    found_companions = {file: [*companions.of(file)] for file in files.values() if file.exists()}
    along = {file.with_name(name).resolve() for file, names in found_companions.items() for name in names}
    return {file: found_companions.get(file, []) for place, file in files.items() if place not in along}


def _check_photograph(file: Path) -> None:
    """DataError for an unreadable image, or a name that an index would skip."""
    with open_image(file, str(file)) as image:
        image.load()
    if file.suffix.lower() not in IMAGE_ENDINGS:
        raise DataError(f"{file}: an index reads files that end in {', '.join(sorted(IMAGE_ENDINGS))}; rename it")
