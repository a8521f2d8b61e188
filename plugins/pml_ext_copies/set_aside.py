"""Move copies to another folder and back, or replace them by hard links. Nothing is deleted."""

import contextlib
import dataclasses
import errno
import filecmp
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pml_ext.errors import ConfigError, DataError, UnwritableError
from pml_ext_train.data import Companions
from pml_ext_train.files import (
    DamagedError,
    FileStat,
    file_stat,
    free_names,
    locked_folder,
    read_json,
    rename_file,
    write_json,
)

from .groups import Duplicates

MOVES = ".pml-ext-moves.json"  # in the folder of moved copies: where each comes from
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)


@dataclasses.dataclass
class SetAside:
    """What was done to copies."""

    files: int = 0
    space: int = 0  # bytes that they took
    companions: int = 0  # files that were moved along
    left: list[str] = dataclasses.field(default_factory=list)  # why each other copy was left as it was


class _Planned(NamedTuple):
    """A copy to move and the image to keep, with their sizes and times at the comparison."""

    copy: str  # below the folder of images
    size: int
    changed: int
    kept: str
    kept_size: int
    kept_changed: int
    target: str  # below the folder of moved copies
    companions: Mapping[str, Sequence[str]] = {}  # names in the copy's folder, each with all images that share it

    def companion_paths(self, root: Path, target: Path) -> Iterator[tuple[Path, Path, list[Path]]]:
        """The path of each companion, its path when it is moved along, and the images that share it."""
        copy = root / self.copy
        moved = target / self.target
        for name, sharing in self.companions.items():
            beside = moved.with_name(moved.stem + name.removeprefix(copy.stem))
            yield copy.with_name(name), beside, [copy.with_name(other) for other in sharing]


@dataclasses.dataclass
class _Move:
    """The images that one call moves out of a folder."""

    root: str
    finished: bool
    images: list[_Planned]


def link_copies(found: Duplicates, roots: Sequence[Path]) -> SetAside:
    """Replace exact copies by hard links to the image to keep.

    Both files are compared byte by byte first. A kill leaves the file or the link. If a copy is on another device,
    ConfigError is raised before anything changes.
    """
    pairs = []
    for group in found.of_kind("exact"):
        for copy in group.others:
            pairs += [(name, copy.stat, group.keep.file, group.keep.stat) for name in copy.names]
    done = SetAside()
    with _locked(roots if pairs else []):
        for name, _, kept, _ in pairs:
            if name.exists() and kept.exists() and os.lstat(name).st_dev != os.stat(kept).st_dev:
                raise ConfigError(
                    f"--link: {name} and {kept} are on different devices, which hard links cannot connect; "
                    "use --move FOLDER"
                )
        for name, stat, kept, kept_stat in pairs:
            if reason := _why_left(name, stat, kept, kept_stat):
                done.left.append(reason)
                continue
            before = os.lstat(name)
            if not os.path.samestat(before, os.stat(kept)) and _is_linked(name, kept, done):
                done.files += 1
                done.space += before.st_size if before.st_nlink == 1 else 0
    return done


def _is_linked(copy: Path, kept: Path, done: SetAside) -> bool:
    digest = hashlib.sha256(os.fsencode(copy.name)).hexdigest()[:16]
    temporary = copy.with_name(f".pml-ext-link-{digest}")
    try:
        if not filecmp.cmp(copy, kept, shallow=False):
            done.left.append(f"{copy} has changed since it was compared")
            return False
        # of a process that was killed: another name of an image, unless that is gone
        if temporary.exists() and (temporary.stat().st_nlink > 1 or filecmp.cmp(temporary, kept, shallow=False)):
            temporary.unlink()
        os.link(os.path.realpath(kept), temporary)
        os.replace(temporary, copy)
    except OSError as error:
        raise UnwritableError(
            f"--link: {copy} cannot become a link to {kept} ({error.strerror or error}); it stays as it was"
        ) from None
    return True


def move_copies(found: Duplicates, folder: Path, roots: Sequence[Path]) -> SetAside:
    """Move the copies of all groups to a folder, with their paths below it.

    Skips a pair if either file has changed since the comparison. The plan is written first, so that
    :func:`finish_moves` can complete it after a kill. Existing files are never replaced.

    Args:
        found: the groups.
        folder: created if it is missing.
        roots: the folders of the images; copies in the first are moved.

    Raises:
        ConfigError: if the folder shares images with a root, or is on another device; nothing has changed.
    """
    target = Path(os.path.realpath(folder))
    root = Path(os.path.realpath(roots[0]))
    _check_apart(folder, roots)
    images = []
    companions = Companions()
    links = {}  # symbolic links to images of the groups, and whether each is a copy
    for group in found.groups:
        kept = str(group.keep.file.absolute())
        for copy in group.images:
            for name in copy.names:
                if name.is_symlink():
                    links[name] = not group.keeps(copy)
                elif not group.keeps(copy):
                    place = (Path(os.path.realpath(name.parent)) / name.name).relative_to(root)
                    along = companions.of(name)
                    planned = _free_target(target, place, along)
                    images.append(_Planned(str(place), *copy.stat, kept, *group.keep.stat, planned, along))
    done = SetAside()
    if images:
        with _locked([*roots, folder]):
            for image in images:
                if (root / image.copy).exists() and os.lstat(root / image.copy).st_dev != target.stat().st_dev:
                    raise ConfigError(
                        f"--move {folder}: {root / image.copy} is on another device; choose a folder on the same device"
                    )
            for parent in {(target / image.target).parent for image in images}:
                if target not in (parent.resolve(), *parent.resolve().parents):
                    raise ConfigError(
                        f"--move {folder}: {parent} is a link that leads out of it; choose another folder"
                    )
            moves = [*_read(target), _Move(str(root), False, images)]
            _carry_out(moves, moves[-1], target, done)
    for link, is_copy in links.items():
        if not link.exists():
            done.left.insert(0, f"{link} is a symbolic link that leads nowhere now")
        elif is_copy:
            done.left.append(f"{link} is a symbolic link")
    return done


def _free_target(target: Path, copy: Path, companions: Iterable[str]) -> str:
    """A path below ``target`` that is free for a copy and for its companions."""
    endings = [copy.suffix, *(name.removeprefix(copy.stem) for name in companions)]
    return str(free_names((target / copy).parent, copy.stem, endings)[0].relative_to(target))


def finish_moves(folder: Path, roots: Sequence[Path]) -> SetAside:
    """Complete interrupted moves from the first root, as planned."""
    target = Path(os.path.realpath(folder))
    done = SetAside()
    if _unfinished(_read(target), roots[0]):
        with _locked([*roots, folder]):
            moves = _read(target)
            for move in _unfinished(moves, roots[0]):
                _carry_out(moves, move, target, done)
    return done


def _unfinished(moves: Iterable[_Move], root: Path) -> list[_Move]:
    return [move for move in moves if move.root == os.path.realpath(root) and not move.finished]


def _carry_out(moves: Sequence[_Move], move: _Move, target: Path, done: SetAside) -> None:
    """Move the images of one plan; also counts what a killed process has moved."""
    _write(target, moves)
    for number, image in enumerate(move.images):
        copy = Path(move.root, image.copy)
        place = target / image.target
        stat = (image.size, image.changed)
        if not (file_stat(copy) is None and file_stat(place) == stat):
            kept = Path(image.kept)
            kept_stat = (image.kept_size, image.kept_changed)
            while not (reason := _why_left(copy, stat, kept, kept_stat)) and not _moved(copy, place):
                image = image._replace(target=_free_target(target, Path(image.copy), image.companions))
                place = target / image.target
                move.images[number] = image
                _write(target, moves)
            if reason:
                done.left.append(reason)
                continue
        done.files += 1
        done.space += image.size
        for companion, beside, sharing in image.companion_paths(Path(move.root), target):
            if any(map(os.path.lexists, sharing)):
                continue  # it stays with the others
            if _moved(companion, beside):
                done.companions += 1
            elif companion.exists():
                done.left.append(f"{companion} stays there, since {beside} is taken")
    move.finished = True
    move.images = [image for image in move.images if (target / image.target).exists()]
    _write(target, moves)


def move_back(folder: Path, root: Path) -> SetAside:
    """Move copies back below ``root``; a copy stays in ``folder`` if its place is taken.

    The next call completes an interrupted one. DataError if nothing was moved from ``root``.
    """
    target = Path(os.path.realpath(folder))
    known = {move.root for move in _read(target)}
    if os.path.realpath(root) not in known:
        if not known:
            why = f"it has no list of moved images, {MOVES} (older versions wrote none)"
            raise DataError(f"--undo {folder}: {why}; to put copies back by hand: cp -an {folder}/. {root}")
        raise DataError(
            f"--undo {folder}: its images come from {min(known)}; type: pml-ext duplicates {min(known)} --undo {folder}"
        )
    done = SetAside()
    with _locked([root, folder]):
        moves = _read(target)
        for move in _unfinished(moves, root):
            move.finished = True  # what was not moved is not moved any more
        _write(target, moves)
        for move in reversed(moves):
            if move.root == os.path.realpath(root):
                move.images = [image for image in move.images if not _is_back(image, move, target, done)]
        _write(target, moves)
    return done


def _is_back(image: _Planned, move: _Move, target: Path, done: SetAside) -> bool:
    """Move an image and its companions back; True if nothing of it stays."""
    copy = Path(move.root, image.copy)
    moved = target / image.target
    if not moved.exists():
        if not copy.exists():
            done.left.append(f"{moved} is gone")
    elif _moved(moved, copy):
        done.files += 1
    else:
        done.left.append(f"{moved} stays there, since {copy} is taken")
        return False
    taken = []
    for companion, beside, _ in image.companion_paths(Path(move.root), target):
        if beside.exists() and not _moved(beside, companion):
            taken.append(f"{beside} stays there, since {companion} is taken")
    done.left += taken
    return not taken


def _moved(source: Path, target: Path) -> bool:
    """Move a file on its device; False, without a change, if the name is taken or the file gone.

    A kill may leave both names; the next call removes the first.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
        except FileNotFoundError:
            return False
        except FileExistsError:
            if not _is_second_name(source, target):
                return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return rename_file(source, target)
        source.unlink()
    except OSError as error:
        raise UnwritableError(
            f"{source} cannot be moved to {target} ({error.strerror or error}); it stays where it was"
        ) from None
    return True


def _is_second_name(source: Path, target: Path) -> bool:
    if source.stat().st_nlink == 1 or source.parent.samefile(target.parent):
        return False
    return target.exists() and source.samefile(target)


def _check_apart(folder: Path, roots: Iterable[Path]) -> None:
    """Raise ConfigError if the folder contains a root, or is inside one, also by a link."""
    real = Path(os.path.realpath(folder))
    for root in roots:
        is_inside = Path(os.path.abspath(root)) in Path(os.path.abspath(folder)).parents
        if is_inside or any(place.exists() and place.samefile(root) for place in (real, *real.parents)):
            raise ConfigError(
                f"--move {folder}: it is inside {root}, whose images are compared; choose a folder outside"
            )
        if real in Path(os.path.realpath(root)).parents:
            raise ConfigError(f"--move {folder}: it contains {root}, whose images are compared; choose another folder")


@contextlib.contextmanager
def _locked(folders: Iterable[Path]) -> Iterator[None]:
    """Lock writable folders, in the same order in all processes."""
    with contextlib.ExitStack() as locks:
        for folder in sorted({os.path.realpath(folder) for folder in folders}):
            if not os.path.exists(folder) or os.access(folder, os.W_OK):
                locks.enter_context(locked_folder(Path(folder)))
        yield


def _read(target: Path) -> list[_Move]:
    file = target / MOVES
    try:
        moves = read_json(file)["moves"]
        return [_Move(move["root"], move["finished"], [_Planned(*image) for image in move["images"]]) for move in moves]
    except FileNotFoundError:
        return []
    except (DamagedError, KeyError, TypeError) as error:
        raise DataError(
            f"{file}: damaged ({error}), so moves to {target} cannot be undone; rename it to move more images"
        ) from None


def _write(target: Path, moves: Iterable[_Move]) -> None:
    write_json(target / MOVES, {"moves": [dataclasses.asdict(move) for move in moves]})


def _why_left(name: Path, stat: FileStat, kept: Path, kept_stat: FileStat) -> str:
    """Why a file is skipped, or an empty string."""
    if name.is_symlink():
        return f"{name} is a symbolic link"
    if kept.is_symlink():
        return f"{name} is a file, but the image to keep, {kept}, is a symbolic link"
    for file, before in ((name, stat), (kept, kept_stat)):
        now = file_stat(file)
        if now is None:
            return f"{file} is gone since it was compared"
        if now != before:
            return f"{file} has changed since it was compared"
    return ""
