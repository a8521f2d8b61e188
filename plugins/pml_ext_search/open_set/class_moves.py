"""The journal of files that were moved from class to class, so that each move can be finished and undone."""

import contextlib
import dataclasses
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from pml_ext.errors import DataError
from pml_ext_train.files import (
    DamagedError,
    first_part,
    first_parts,
    free_name,
    free_part,
    read_json,
    rename_file,
    write_json,
    writing,
)

JOURNAL = ".pml-ext-classes.json"  # in the indexed folder


@dataclasses.dataclass
class Move:
    """Files that are moved from one class to another."""

    old: str
    new: str  # "" for a class that is removed
    files: list[list[str]]  # old and new path of each, below the indexed folder
    undoes: int = 0  # the number of the move that this one undoes, from 1
    finished: bool = False


def read_moves(root: Path) -> list[Move]:
    """The moves of an indexed folder; DataError for a damaged journal."""
    file = root / JOURNAL
    if not root.is_dir():  # a file of vectors, or gone
        return []
    try:
        return [Move(**move) for move in read_json(file)["moves"]]
    except FileNotFoundError:
        return []
    except (DamagedError, KeyError, TypeError) as error:
        raise DataError(f"{file}: damaged ({error}); rename it, and earlier changes can no longer be undone") from None


def write_moves(root: Path, moves: Iterable[Move]) -> None:
    """Write the journal atomically."""
    write_json(root / JOURNAL, {"moves": [dataclasses.asdict(move) for move in moves]})


def former_names(root: Path) -> dict[str, set[str]]:
    """The names that photographs of each class had before."""
    former = defaultdict[str, set[str]](set)
    for move in read_moves(root):
        if move.old and move.new:
            former[move.new] |= {move.old} | former[move.old]
    return former


def planned(files: Sequence[Path], targets: Sequence[Path], root: Path) -> list[list[str]]:
    """The path of each file, and a free one for its target, both below ``root``; DataError for a name too long.

    Files whose names agree up to the first dot get the same number, so that companions stay with their photograph.
    """
    taken: dict[Path, set[str]] = {}
    new_part: dict[tuple[Path, str], str] = {}
    pairs = []
    for file, wanted in zip(files, targets, strict=True):
        folder, part = wanted.parent, first_part(wanted.name)
        if (folder, part) not in new_part:
            parts = taken.setdefault(folder, first_parts(folder))
            new_part[folder, part] = free_part(part, parts)
            parts.add(new_part[folder, part].casefold())
        target = folder / (new_part[folder, part] + wanted.name.removeprefix(part))
        if len(os.fsencode(target.name)) > 255:
            raise DataError(f"{file}: its name is taken in {folder}, and too long for a number; rename it first")
        pairs.append([file.relative_to(root).as_posix(), target.relative_to(root).as_posix()])
    return pairs


def carry_out(root: Path, moves: Sequence[Move], move: Move) -> None:
    """Move the files, and remove folders that are empty then; a repeated call goes on."""
    write_moves(root, moves)
    for pair in move.files:
        source, target = (root / path for path in pair)
        with writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            while os.path.lexists(source) and not rename_file(source, target):
                target = free_name(target)  # another program has taken the name
                pair[1] = target.relative_to(root).as_posix()
                write_moves(root, moves)
    for folder in {(root / old).parent for old, _ in move.files}:
        with contextlib.suppress(OSError):  # what is not empty stays
            while folder != root:
                folder.rmdir()
                folder = folder.parent
