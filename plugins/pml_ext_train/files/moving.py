"""Free names, and files that are renamed without replacing others."""

import os
from collections.abc import Collection, Sequence
from pathlib import Path


def free_name(target: Path) -> Path:
    """A path that does not exist yet: ``photo.jpg``, else ``photo-2.jpg`` and so on."""
    return free_names(target.parent, target.stem, [target.suffix])[0]


def free_names(folder: Path, stem: str, endings: Sequence[str]) -> list[Path]:
    """Paths of files with one stem that do not exist yet, with the same number if one is needed."""
    free = [folder / f"{stem}{ending}" for ending in endings]
    number = 1
    while any(map(os.path.lexists, free)):
        number += 1
        free = [folder / f"{stem}-{number}{ending}" for ending in endings]
    return free


def first_part(name: str) -> str:
    """A file's name up to its first dot, which a photograph and its companions share."""
    return name[:1] + name[1:].partition(".")[0]


def first_parts(folder: Path) -> set[str]:
    """The first parts of the names in a folder, without case."""
    return {first_part(name).casefold() for name in os.listdir(folder)} if folder.is_dir() else set()


def free_part(part: str, taken: Collection[str]) -> str:
    """A first part of a name, with a number if it is taken."""
    number = 1
    free = part
    while free.casefold() in taken:
        number += 1
        free = f"{part}-{number}"
    return free


def rename_file(source: Path, target: Path) -> bool:
    """Rename a file on its device; False, without a change, if the target has content.

    An empty file reserves the name, so that no other file is replaced. A killed call may leave the empty file, which
    the next call replaces.
    """
    try:
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        if target.is_symlink() or not target.is_file() or target.stat().st_size:
            return False
    try:
        os.replace(source, target)
    except OSError:
        target.unlink()
        raise
    return True
