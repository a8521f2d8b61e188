"""The indexed folder, whose sub-folders are the enrolled classes."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pml_ext.errors import ConfigError, DataError, shortened
from pml_ext_train.data import SPLIT_FOLDERS, Exclusion
from pml_ext_train.files import as_spelled, check_writable, composed, locked_folder, path_bytes

from ..collection.class_folders import ClassFolders
from ..collection.problems import StoreWarning
from .class_moves import Move, carry_out, read_moves, write_moves

if TYPE_CHECKING:
    from ..query.gallery import Gallery
    from ..query.search_index import SearchIndex


class EnrolledFolder:
    """The indexed folder of an index of images; DataError if it is gone."""

    def __init__(self, search_index: SearchIndex) -> None:
        _ = search_index.images  # refuses an index of vectors
        with search_index.gallery().reading() as current:
            index = current.state.index
            assert index is not None  # a gallery that opens has one
        self._search_index = search_index
        self._factory = index.factory
        self.class_folders = index.class_folders
        self.root = Path(index.folder)
        if not self.root.is_dir():
            raise DataError(f"{self.root}: the indexed folder is gone, and enroll keeps photographs in it")
        if self.root == search_index.folder_of_cuts.resolve():
            raise ConfigError(f"{self.root} has what index cut from a table; change the table, and index it again")
        check_writable("", self.root)
        self._exclusion = Exclusion(self.root, index.rules.exclude or ())

    @contextlib.contextmanager
    def locked(self) -> Iterator[list[Move]]:
        """Lock the folder, and finish what a killed command began; yields the moves so far."""
        waiting = StoreWarning(f"{self.root}: another command changes its images; waiting until it is done")
        with locked_folder(self.root, waiting):
            moves = read_moves(self.root)
            for move in moves:
                if not move.finished:
                    self.carry_out(moves, move)
            yield moves

    def carry_out(self, moves: list[Move], move: Move) -> Gallery:
        """Move files, and update the index; nothing is embedded again."""
        carry_out(self.root, moves, move)
        self._search_index.collection.rename(
            {path_bytes(f"{self.root}/{old}"): path_bytes(f"{self.root}/{new}") for old, new in move.files}
        )
        gallery = self.index()
        move.finished = True
        write_moves(self.root, moves)
        return gallery

    def index(self) -> Gallery:
        """Index the folder again."""
        return self._search_index.index(factory=self._factory, retry_damaged=False)

    def new_place(self, name: str, option: str, own: Collection[Path] = (), names: Collection[str] = ()) -> Path:
        """The folder of a class, which need not exist; ConfigError for an unsuitable name.

        A new name may read like the folders in ``own``. ``names`` has the files that it shall have.
        """
        place = self.root / as_spelled(self.root, folder_of(name, self.class_folders, option))
        for file in ("photograph.jpg", *names):
            if self._exclusion.covers(f"{place.relative_to(self.root).as_posix()}/{file}"):
                raise ConfigError(
                    f"{option} {name}: the patterns of the index leave {file if file in names else 'this folder'} out; "
                    f"change them first: {self._search_index.collection.index_command('--exclude', 'PATTERN')}"
                )
        self._check_twins(place, option, own)
        return place

    def _check_twins(self, place: Path, option: str, own: Collection[Path]) -> None:
        """ConfigError if a new folder's name differs from another only in case or outer blanks."""
        if place.is_dir():
            return
        inside = [path for path in (*reversed(place.parents), place) if path.is_relative_to(self.root)]
        new = next((path for path in inside if not path.is_dir()), place)
        for there in sorted(path for path in new.parent.iterdir() if path.is_dir() and path not in own):
            is_other = there.name != new.name  # else another process has just made it
            if is_other and composed(there.name).strip().casefold() == composed(new.name).strip().casefold():
                raise ConfigError(
                    f"{option} {place.name!r}: the class {there.name!r} reads nearly the same; type its name, or "
                    f"first: mkdir -p {shlex.quote(str(place))}"
                )


def folder_of(name: str, class_folders: ClassFolders, option: str) -> str:
    """The sub-folder of a class; ConfigError for an unsuitable name."""
    folder = f"{SPLIT_FOLDERS[-1]}/{name}" if class_folders.below_splits else name
    parts = name.split("/")
    if not all(part.strip() and not part.startswith(".") for part in parts):
        raise ConfigError(f"{option} {shortened(name, 100)!r}: wanted the name of a folder that is not hidden")
    if any(ord(character) < 32 or character == "\\" for character in name):
        raise ConfigError(f"{option} {shortened(repr(name), 100)}: wanted a name without line breaks and backslashes")
    if len(os.fsencode(max(parts, key=len))) > 255:
        raise ConfigError(f"{option} {shortened(name, 40)}: wanted a name of at most 255 bytes")
    if class_folders.class_of(f"{folder}/photograph.jpg") != name:
        raise ConfigError(
            f"{option} {shortened(name, 100)!r}: {class_folders.levels} sub-folder names a class in this index; wanted "
            "a name without /"
        )
    if not class_folders.below_splits and name in SPLIT_FOLDERS:
        raise ConfigError(f"{option} {name}: a folder of this name would be part of a split; choose another name")
    return folder
