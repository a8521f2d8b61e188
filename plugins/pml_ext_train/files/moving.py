"""Free names, and files that are renamed without replacing others."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path


def free_name(target: Path, taken: Collection[Path] = ()) -> Path:
    """A path that does not exist yet: ``photo.jpg``, else ``photo-2.jpg`` and so on."""
    return free_names(target.parent, target.stem, [target.suffix], taken)[0]


def free_names(folder: Path, stem: str, endings: Sequence[str], taken: Collection[Path] = ()) -> list[Path]:
    """Paths of files with one stem, none of which exists or is ``taken``: with the same number, if one is needed."""
    free = [folder / f"{stem}{ending}" for ending in endings]
    number = 1
    while any(path in taken or os.path.lexists(path) for path in free):
        number += 1
        free = [folder / f"{stem}-{number}{ending}" for ending in endings]
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
