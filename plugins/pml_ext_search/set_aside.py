"""Copies set aside: moved to another folder, or replaced by hard links. Nothing is ever deleted."""

from __future__ import annotations

import dataclasses
import filecmp
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from pml_ext.tool import ConfigError, DataError, UnwritableError, locked_folder

from .duplicates import Copy, Duplicates, Group
from .free_name import free_name


@dataclasses.dataclass
class SetAside:
    """What was done to copies."""

    files: int = 0
    space: int = 0  # bytes that they took
    left: list[str] = dataclasses.field(default_factory=list)  # why each other copy was left as it was


def link_copies(found: Duplicates) -> SetAside:
    """Replace exact copies by hard links to the image to keep; copies that are no exact ones stay.

    A link is made beside the copy under a hidden name and renamed over it. A process that is killed leaves each file
    as it was, or as a link. Both files are compared byte for byte just before. ConfigError, with nothing changed, if a
    copy is on another device than the image to keep.
    """
    exact = found.of_kind("exact")
    for group in exact:
        for name in _names_of(group):
            kept = _file_of(group.keep)
            if os.lstat(name).st_dev != os.stat(kept).st_dev:
                raise ConfigError(
                    f"--link: {name} is on another device than {kept}, where no hard link reaches; "
                    "wanted copies of one device (or --move DIR)"
                )
    done = SetAside()
    for group in exact:
        kept = _file_of(group.keep)
        for name in _names_of(group):
            before = os.lstat(name)
            if os.path.samestat(before, os.stat(kept)):
                continue
            if reason := _why_left(name) or _why_unequal(name, kept):
                done.left.append(reason)
                continue
            _link(kept, name)
            done.files += 1
            if before.st_nlink == 1:
                done.space += before.st_size
    return done


def _link(kept: Path, copy: Path) -> None:
    """Replace a file by a hard link, atomically."""
    digest = hashlib.sha256(os.fsencode(copy.name)).hexdigest()[:16]
    temporary = copy.with_name(f".pml-ext-link-{digest}")
    try:
        if temporary.is_file() and temporary.samefile(kept):  # of a process that was killed
            temporary.unlink()
        os.link(os.path.realpath(kept), temporary)
        os.replace(temporary, copy)
    except OSError as error:
        reason = error.strerror or error
        raise UnwritableError(f"--link: {copy} cannot become a link to {kept} ({reason}); it stays as it was") from None


def move_copies(found: Duplicates, folder: Path, roots: Iterable[Path]) -> SetAside:
    """Move the copies of all groups to a folder, below which they keep their paths.

    A file is renamed, so that a process that is killed leaves it in the one place or the other. ConfigError, with
    nothing changed, if the folder is inside of one with images, or on another device.

    Args:
        found: the groups; the image to keep of each stays, and so do the images of an old folder.
        folder: is created if it is missing.
        roots: the folders with the images, of which the first has those that are moved.
    """
    new_root, *_ = roots = [Path(os.path.realpath(root)) for root in roots]
    target = Path(os.path.realpath(folder))
    for root in roots:
        if target == root or root in target.parents:
            raise ConfigError(f"--move {folder}: it is inside of {root}, whose images are compared; wanted another")
    copies = [name for group in found.groups for name in _names_of(group)]
    done = SetAside()
    if not copies:
        return done
    with locked_folder(folder):
        device = target.stat().st_dev
        for name in copies:
            if os.lstat(name).st_dev != device:
                raise ConfigError(f"--move {folder}: {name} is on another device; wanted a folder on its own")
        for name in copies:
            if reason := _why_left(name):
                done.left.append(reason)
                continue
            place = Path(os.path.realpath(name.parent)) / name.name
            size = os.lstat(name).st_size
            _move(name, free_name(target / place.relative_to(new_root)))
            done.files += 1
            done.space += size
    return done


def _move(copy: Path, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        os.rename(copy, target)
    except OSError as error:
        raise UnwritableError(
            f"--move: {copy} cannot be moved to {target} ({error.strerror or error}); it stays where it was"
        ) from None


def _names_of(group: Group) -> list[Path]:
    """Return the files of a group's copies, with the other names of each."""
    names = []
    for copy in group.others:
        names += [_file_of(copy), *copy.other_names]
    return names


def _file_of(copy: Copy) -> Path:
    if copy.file is None:
        raise ConfigError(f"{copy.path} is a vector, no file; leave out --link and --move")
    return copy.file


def _why_left(name: Path) -> str:
    """Return why a file is neither linked nor moved, "" if nothing speaks against it."""
    if name.is_symlink():
        return f"{name} is a symbolic link"
    return ""


def _why_unequal(name: Path, kept: Path) -> str:
    try:
        if filecmp.cmp(name, kept, shallow=False):
            return ""
    except OSError as error:
        raise DataError(f"{name} cannot be compared with {kept} ({error.strerror or error}); both stay") from None
    return f"{name} has changed since it was compared"
