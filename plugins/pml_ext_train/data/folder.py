"""A user's own folder of images."""

from __future__ import annotations

import csv
import dataclasses
import errno
import os
import re
import stat
from collections.abc import Collection
from pathlib import Path
from typing import Literal

from pml_ext.errors import ConfigError, DataError

from ..files.stat import composed, doubt_about
from .images import LabeledImages
from .reading import IMAGE_ENDINGS
from .splits import DataSplits, check_trainable, divide

_ADVICE_ON_LEAVES = "--set data.classes=leaf takes each innermost folder as a class"
GONE = (errno.ENOENT, errno.ELOOP)  # errors of a file that vanished, or of a link that leads nowhere
CLUSTERS_TABLE = "clusters.csv"  # written by pml-ext cluster, beside its contact sheets
SPLIT_FOLDERS = ("train", "test")
VALIDATION_FOLDERS = ("val", "valid", "validation")
# Endings of images that are not read; of files in a class's folder, others are no images.
_OTHER_IMAGES = (".jxl", ".psd", ".svg", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2")
CLUSTERS_COLUMNS = ("path", "cluster", "distance_to_center", "class", "sheet")
SYSTEM_FOLDER = "a recycle bin or another system folder"  # why a folder is skipped
# Of operating systems, archivers and network drives, in lower case.
_SYSTEM_FOLDERS = (
    *("#recycle", "@recycle", "$recycle.bin", "recycler", ".trashes", "lost+found", "system volume information"),
    *("@eadir", "#snapshot", "__macosx", ".thumbnails"),
)


def folder(
    root: Path | None = None,
    path: str = "",
    image_size: int = 224,
    channels: Literal[1, 3] = 3,
    split: Literal["class", "image"] | None = None,
    train_fraction: float | None = None,
    seed: int | None = None,
    classes: Literal["outer", "leaf"] = "outer",
    levels: int | None = None,
) -> DataSplits:
    """Return a folder of images, one sub-folder per class, or ``train/CLASS`` and ``test/CLASS``.

    The shorter side of an image is resized, and a square cut from the middle. Unless the folder has ``train`` and
    ``test``, it is split by class (test classes are never trained on) or by image.

    Args:
        root: the folder that ``path`` is relative to.
        path: the folder.
        image_size: height and width of the network's input, in pixels.
        channels: 1 (gray) or 3 (color).
        split: of a folder without ``train`` and ``test``: ``"class"`` (the default; tested classes are never trained
            on), or ``"image"``, which divides the images of each class.
        train_fraction: the share of the classes, or of each class's images, to train with, above 0 and below 1; 0.5 by
            default.
        seed: random seed of the split; 0 by default.
        classes: in nested folders, the class is the outermost folder (``"outer"``), or the innermost, named by its path
            (``"leaf"``).
        levels: instead of ``classes``: depth of the class folders, named by their paths, for a hierarchy of classes.

    Raises:
        ConfigError: a setting outside its range.
        DataError: the folder is missing, has no images or only one class, or folders of splits of other names.
    """
    if levels is not None and (levels < 1 or classes != "outer"):
        raise ConfigError(
            f"levels of a folder must be 1 or more, and goes without classes; found {levels}, {classes!r}"
        )
    place = (root or Path()) / Path(path).expanduser()
    if not os.path.isdir(place):
        raise DataError(f"{place}: no such folder; folder:PATH needs one sub-folder of images per class")
    depth = class_levels(classes, levels)
    divided = all((place / part).is_dir() for part in SPLIT_FOLDERS)
    notes: list[str] = []
    parts = [place]
    if divided:
        parts = [place / part for part in SPLIT_FOLDERS]
        notes += _unused_validation(place)
        given = {"split": split, "train_fraction": train_fraction, "seed": seed}
        unused = [name for name, value in given.items() if value is not None]
        if unused:
            notes.append(f"{place} has the folders train and test, so that {', '.join(unused)} has no effect")

    skipped = _Skipped()
    found = [_files_by_class(part, depth, skipped) for part in parts]
    names = sorted(set().union(*found))
    if doubt := doubt_about(names):
        notes.append(f"{place}: {doubt}")
    labeled = [_labeled(files, names, channels) for files in found]
    nested = _first_nested_folder(labeled, parts)

    if divided:
        train, test = labeled
        check_trainable(place, train, test)
    else:
        _check_classes(place, names)
        if len(names) == 1:
            remedy = _ADVICE_ON_LEAVES if nested else "wanted a sub-folder for each of several classes"
            raise DataError(f"{place}: found 1 class, {names[0]}; {remedy}")
        train, test = divide(place, labeled[0], split, train_fraction, seed)

    if nested and classes == "outer" and levels is None:
        notes.append(
            f"{nested} is a folder inside of a class's folder, whose class its images get; {_ADVICE_ON_LEAVES}"
        )
    notes += skipped.notes()
    return DataSplits(train, test, image_size=image_size, channels=channels, crop=True, note="; ".join(notes))


def class_levels(classes: str = "outer", levels: int | None = None) -> int | None:
    """Return how many sub-folders, from the outermost, name a class; None for all. Arguments as of :func:`folder`."""
    if classes == "leaf":
        return None
    return levels or 1


@dataclasses.dataclass
class _Skipped:
    """What a folder has that is not read as images of a class."""

    runs: list[Path] = dataclasses.field(default_factory=list)
    system_folders: list[Path] = dataclasses.field(default_factory=list)
    linked_folders: list[Path] = dataclasses.field(default_factory=list)
    loose_images: list[Path] = dataclasses.field(default_factory=list)  # beside the folders of classes
    other_images: list[Path] = dataclasses.field(default_factory=list)  # in formats that are not read

    def notes(self) -> list[str]:
        """Return a line for each kind."""
        lines = (
            (self.runs, "{1} is the folder of a run, whose figures are not read as images"),
            (self.system_folders, "recycle bins and other system folders are skipped: {0}, {1} first"),
            (self.linked_folders, "links to folders are not followed: {0}, {1} first; put the folders in their place"),
            (
                self.loose_images,
                "images beside the folders of classes have no class: {0}, {1} first; put them into one",
            ),
            (self.other_images, "images of these endings are not read: {0}, {1} first; save them as .jpg or .png"),
        )
        return [line.format(len(paths), min(paths)) for paths, line in lines if paths]


def _unused_validation(place: Path) -> list[str]:
    """Return a note for each folder of validation images beside ``train`` and ``test``."""
    return [
        f"{place / name}: not used; train and test are the split"
        for name in sorted(_entries(place, []))
        if name.lower() in VALIDATION_FOLDERS
    ]


def _check_classes(place: Path, names: Collection[str]) -> None:
    """Raise DataError for folders that are splits of other names than ``train`` and ``test``, and would be classes."""
    outermost = sorted({name.partition("/")[0] for name in names})
    if all(name.lower() in (*SPLIT_FOLDERS, *VALIDATION_FOLDERS) for name in outermost):
        raise DataError(
            f"{place}: found {' and '.join(outermost)}, which are splits and no classes; wanted the two folders train "
            "and test, so named, each with a sub-folder per class"
        )


def _first_nested_folder(labeled: list[LabeledImages], parts: list[Path]) -> Path | None:
    """Return the folder of the first image that lies deeper than in a class's folder."""
    for images in labeled:
        for file in images.paths or []:
            if file.parents[1] not in parts:
                return file.parent
    return None


def is_run(place: Path, names: Collection[str]) -> bool:
    """Return whether a folder, with the names in it, is that of a training run."""
    return "recipe.toml" in names and any(os.path.exists(place / name) for name in ("checkpoints", "records"))


def contact_sheets(place: Path, names: Collection[str]) -> set[str]:
    """Return the names of the contact sheets that ``pml-ext cluster`` wrote into a folder, with the names in it."""
    if CLUSTERS_TABLE not in names:
        return set()
    return listed_sheets(place / CLUSTERS_TABLE) or set()


def listed_sheets(table: Path) -> set[str] | None:
    """Return the names of the contact sheets in a table of clusters; None for a table that is not ours."""
    if not table.is_file():
        return None
    with table.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        if file.readline().strip() != ",".join(CLUSTERS_COLUMNS):
            return None
        listed = {row[-1] for row in csv.reader(file) if row}
    return {name for name in listed if re.fullmatch(r"cluster-\d{3,}\.png", name)}


def is_system_folder(name: str) -> bool:
    """Whether a name is that of a folder that no person made, such as a recycle bin."""
    return name.lower() in _SYSTEM_FOLDERS


def visible_entries(place: Path, system_folders: list[Path]) -> dict[str, os.DirEntry[str]]:
    """Entries of a folder by name, without hidden ones; system folders are added to the list instead."""
    found = {}
    with os.scandir(place) as entries:
        for entry in entries:
            if is_system_folder(entry.name):
                system_folders.append(place / entry.name)
            elif not entry.name.startswith("."):
                found[entry.name] = entry
    return found


def _entries(place: Path, system_folders: list[Path]) -> dict[str, os.DirEntry[str]]:
    try:
        return visible_entries(place, system_folders)
    except OSError as error:
        raise DataError(f"{place}: cannot be listed ({error.strerror}); check its permissions") from None


def _is_image(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a regular file, or a link to one, that has the name of an image."""
    if not entry.name.lower().endswith(IMAGE_ENDINGS):
        return False
    try:
        return stat.S_ISREG(entry.stat().st_mode)
    except OSError as error:
        if error.errno in GONE:
            return False
        raise DataError(f"{entry.path}: cannot be read ({error.strerror}); check its permissions") from None


def _files_by_class(place: Path, depth: int | None, skipped: _Skipped) -> dict[str, list[Path]]:
    """Return image files by class, the first ``depth`` folders of a path (None: all); skip hidden and other files.

    What else may be meant as images is added to ``skipped``.
    """
    found: dict[str, list[Path]] = {}
    waiting = [place]  # no recursion: folders may be nested deeper than Python's stack
    while waiting:
        folder = waiting.pop()
        entries = _entries(folder, skipped.system_folders)
        if folder != place and is_run(folder, entries):
            skipped.runs.append(folder)
            continue
        for name, entry in sorted(entries.items(), reverse=True):
            if entry.is_dir(follow_symlinks=False):
                waiting.append(folder / name)
            elif entry.is_symlink() and os.path.isdir(entry.path):
                skipped.linked_folders.append(folder / name)
        sheets = contact_sheets(folder, entries)
        images = []
        for name, entry in entries.items():
            if name not in sheets and _is_image(entry):
                images.append(folder / name)
            elif name.lower().endswith(_OTHER_IMAGES):
                skipped.other_images.append(folder / name)
        if folder == place:
            skipped.loose_images += images
        elif images:
            name = composed("/".join(folder.relative_to(place).parts[:depth]))
            found.setdefault(name, []).extend(images)
    if not found:
        wanted = "wanted one sub-folder of .jpg, .png, ... files per class"
        raise DataError("; ".join([f"{place}: no images in sub-folders", wanted, *skipped.notes()]))
    return found


def _labeled(found: dict[str, list[Path]], names: list[str], channels: int) -> LabeledImages:
    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        of_class = sorted(found.get(name, ()))
        files += of_class
        labels += [label] * len(of_class)
    return LabeledImages(files, labels, names, channels=channels)
