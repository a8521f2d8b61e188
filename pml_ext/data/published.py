"""What published data sets share: where they come from, the counts of their splits, the checks of their lists."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from ..errors import DataError
from .reading import Box
from .splits import DataSplits, LabeledImages

MEANT_FOR = {"train": "training images", "test": "test images", "query": "queries", "gallery": "gallery images"}


class Count(NamedTuple):
    """How large a split is.

    Args:
        images: their number; None where the paper does not say it.
        classes: the number of their classes.
    """

    images: int | None
    classes: int


Counts = Mapping[str, Count]  # by split


class Entry(NamedTuple):
    """An image as a list has it.

    Args:
        path: relative to the folder of the images.
        name: of its class.
        box: the part of it that is meant; None for all of it.
    """

    path: str
    name: str
    box: Box | None = None


@dataclasses.dataclass(frozen=True)
class Archive:
    """A file that a data set is published as.

    Args:
        name: of the file.
        megabytes: about how large it is.
        checksum: MD5 or SHA-256 of the file, as its length says; "" where none is known.
        url: a stable address from which everybody may fetch it; "" where there is none.
        unpack: whether it is to be unpacked; zips of drawings are read as they are.
    """

    name: str
    megabytes: int
    checksum: str = ""
    url: str = ""
    unpack: bool = True


@dataclasses.dataclass(frozen=True)
class About:
    """A published data set: what to get, from where, and what is to be there.

    Args:
        name: as users type it.
        title: as its authors call it.
        page: where it is described.
        license: what may be done with it.
        archives: what it is published as.
        layout: the files that are read, in the set's folder.
        counts: of its splits.
        note: what else to know.
    """

    name: str
    title: str
    page: str
    license: str
    archives: tuple[Archive, ...]
    layout: str
    counts: Counts
    note: str = ""

    @property
    def downloads(self) -> bool:
        """Whether each of its archives has a stable address and a license that allows fetching it."""
        return all(archive.url for archive in self.archives)

    @property
    def place(self) -> Path:
        """Where it lies unless ``--data`` says otherwise: ``$PML_EXT_DATA/NAME``, or the user's cache."""
        if set_by_user := os.environ.get("PML_EXT_DATA"):
            return Path(set_by_user).expanduser() / self.name
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pml_ext" / self.name


def place_of(about: About, root: Path | None, wanted: str, inner: Sequence[str] = ()) -> Path:
    """The folder that a data set's files lie in.

    Args:
        about: the data set.
        root: what ``--data`` says; None for the set's own place.
        wanted: a file that is there.
        inner: names that the folder may have inside of ``root``, since archives bring it along.

    Raises:
        DataError: there is no such folder, or it lacks the file.
    """
    place = about.place if root is None else root.expanduser()
    for candidate in (place, *(place / name for name in inner)):
        if (candidate / wanted).exists():
            return candidate
    here = [archive.name for archive in about.archives if (place / archive.name).is_file()]
    if not place.is_dir():
        state = f"{place}: no such folder"
    elif here:
        state = f"{place} has {', '.join(here)}, but no {wanted}: not unpacked, or not all of it"
    else:
        state = f"{place} has no {wanted}"
    raise DataError(f"{state}; pml-ext data {about.name} says what to get and where to put it")


def read_lines(path: Path, columns: int, header: int = 0) -> list[list[str]]:
    """The lines of a list, each as its columns; the last column may have blanks in it.

    Args:
        path: the list.
        columns: per line.
        header: lines to leave out at the beginning.

    Raises:
        DataError: the list is missing, no text, or a line has fewer columns.
    """
    try:
        lines = path.read_text("utf-8").splitlines()[header:]
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}); unpack its archive again") from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: no text in UTF-8; unpack its archive again") from None
    rows = []
    for number, line in enumerate(lines, header + 1):
        if not line.strip():
            continue
        row = line.split(maxsplit=columns - 1)
        if len(row) != columns:
            raise DataError(f"{path}, line {number}: found {line!r}, wanted {columns} columns; is the file cut?")
        rows.append([cell.strip() for cell in row])
    return rows


def assemble(
    about: About,
    listed_in: Path,
    images: Path,
    parts: Mapping[str, Sequence[Entry]],
    counts: Counts,
    image_size: int,
    names: Sequence[str] = (),
) -> DataSplits:
    """The splits of a published set from its lists, checked.

    Args:
        about: the data set.
        listed_in: the list, for error texts.
        images: the folder that paths are relative to.
        parts: the images of each split; ``train`` and ``test``, or ``train``, ``query`` and ``gallery``.
        counts: how many there are to be.
        image_size: height and width of what the network gets, in pixels.
        names: the classes in the order of their labels; by default in the order of the lists, training classes first.

    Returns:
        The splits, of photographs in color; labels are indices of ``names``, from 0.

    Raises:
        DataError: an image or a class is in two splits, images are missing, or counts are not what they should be.
    """
    check_disjoint(listed_in, parts)
    there = _files_of(images, {entry.path for entries in parts.values() for entry in entries})
    missing = sorted(entry.path for entries in parts.values() for entry in entries if entry.path not in there)
    for part, entries in parts.items():
        _check_count(about, listed_in.parent, part, [e for e in entries if e.path in there], counts, images, missing)
    if missing:  # where the counts do not tell
        raise DataError(f"{images / missing[0]}: no such file, though {listed_in.name} lists it; {_again(about)}")
    return labeled(images, parts, image_size, names)


def labeled(
    images: Path,
    parts: Mapping[str, Sequence[Entry]],
    image_size: int,
    names: Sequence[str] = (),
    channels: Literal[1, 3] = 3,
) -> DataSplits:
    """Photographs of each split, with labels from 0.

    Args:
        images: the folder that paths are relative to.
        parts: the images of each split.
        image_size: height and width of what the network gets, in pixels.
        names: the classes in the order of their labels; by default in the order of the lists.
        channels: 1 (gray) or 3 (color).
    """
    names = list(names or dict.fromkeys(entry.name for entries in parts.values() for entry in entries))
    labels = {name: label for label, name in enumerate(names)}
    splits = {
        part: LabeledImages(
            [images / entry.path for entry in entries],
            [labels[entry.name] for entry in entries],
            names,
            channels=channels,
            boxes=_boxes(entries),
        )
        for part, entries in parts.items()
    }
    return DataSplits(
        splits["train"],
        splits.get("test"),
        query=splits.get("query"),
        gallery=splits.get("gallery"),
        image_size=image_size,
        channels=channels,
        crop=True,
    )


def _boxes(entries: Sequence[Entry]) -> list[Box] | None:
    """The boxes, where there are any; an image without one has a box as wide as any image."""
    if all(entry.box is None for entry in entries):
        return None
    return [entry.box or Box(0, 0, float("1e9"), float("1e9")) for entry in entries]


def check_disjoint(listed_in: Path, parts: Mapping[str, Sequence[Entry]], shared_classes: bool = False) -> None:
    """No image stands twice, and no class is trained on and tested on.

    Args:
        listed_in: the list, for error texts.
        parts: the images of each split.
        shared_classes: whether classes may be in several splits.

    Raises:
        DataError: naming the image or the class.
    """
    seen: dict[str, str] = {}
    for part, entries in parts.items():
        for entry in entries:
            if entry.path in seen:
                where = f"in {seen[entry.path]} and in {part}" if seen[entry.path] != part else f"twice in {part}"
                raise DataError(f"{listed_in}: the image {entry.path} is {where}; take one of its lines out")
            seen[entry.path] = part
    trained = {entry.name for entry in parts["train"]}
    for part, entries in parts.items():
        both = {entry.name for entry in entries} & trained if part != "train" and not shared_classes else set()
        if both:
            raise DataError(
                f"{listed_in}: {len(both)} of the classes of train are in {part} too, {min(both)} first; "
                "test classes must not be trained on: take their lines out of one"
            )


def _check_count(
    about: About, place: Path, part: str, entries: Sequence[Entry], counts: Counts, images: Path, missing: Sequence[str]
) -> None:
    there = Count(len(entries), len({entry.name for entry in entries}))
    wanted = counts[part]
    if there.classes == wanted.classes and wanted.images in (None, there.images):
        return
    what = MEANT_FOR[part]
    number = f"{wanted.images:,} {what}" if wanted.images is not None else what
    text = f"{place}: expected {number} of {wanted.classes:,} classes, found {there.images:,}"
    if there.classes != wanted.classes:
        text += f" of {there.classes:,}"
    if missing:
        text += f"; is an image missing? {images / missing[0]} is not there: {_again(about)}"
    elif wanted.images is not None and len(entries) < wanted.images:
        text += f"; is an image missing? {_again(about)}"
    else:
        text += f"; is this another edition of the set? pml-ext data {about.name} says which is meant"
    raise DataError(text)


def _again(about: About) -> str:
    unpacked = " and ".join(archive.name for archive in about.archives if archive.unpack)
    return f"unpack {unpacked} again" if unpacked else f"pml-ext data {about.name} says what to get"


def _files_of(place: Path, paths: Iterable[str]) -> set[str]:
    """The paths that are files, each folder read once."""
    folders: dict[str, set[str]] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        folders.setdefault(folder, set()).add(name)
    there: set[str] = set()
    for folder, names in folders.items():
        try:
            files = {entry.name for entry in os.scandir(place / folder)}
        except OSError:
            continue
        there.update(f"{folder}/{name}" if folder else name for name in names & files)
    return there
