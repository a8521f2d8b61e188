"""A user's own folder of images."""

import itertools
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Literal

from pml_ext.errors import ConfigError, DataError

from ..files.stat import composed, doubt_about
from .exclusion import Exclusion, FolderRules, Pages
from .listing import LINKED_FOLDER, RUN, SYSTEM_FOLDER, Listing, list_part
from .published import Entry, labeled_part
from .splits import DataSplits, check_trainable, divide

_ADVICE_ON_LEAVES = "--set data.classes=leaf makes each innermost folder a class"
SPLIT_FOLDERS = ("train", "test")
VALIDATION_FOLDERS = ("val", "valid", "validation")
_OTHER_IMAGES = (".jxl", ".psd", ".svg", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2")  # not read
_NOTES = {  # by the reason why folders are skipped, with their number and the first
    RUN: "{1} is the folder of a run, whose figures are not read as images",
    SYSTEM_FOLDER: "recycle bins and other system folders are skipped: {0}, {1} first",
    LINKED_FOLDER: "links to folders are not followed: {0}, {1} first; put the folders in their place",
}


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
    exclude: list[str] | None = None,
    pages: Pages = "first",
) -> DataSplits:
    """Load a folder of images, one sub-folder per class, or ``train/CLASS`` and ``test/CLASS``.

    Images are resized by their shorter side, and a square is cut from the middle.

    Args:
        root: the folder that ``path`` is relative to.
        path: the folder.
        image_size: height and width of the network's input, in pixels.
        channels: 1 (gray) or 3 (color).
        split: without ``train`` and ``test``: ``"class"`` (the default; test classes are never trained on), or
            ``"image"``, which divides each class.
        train_fraction: share of the classes, or of each class's images, to train with, in (0, 1); default 0.5.
        seed: random seed of the split; default 0.
        classes: in nested folders, the class is the outermost folder (``"outer"``), or the innermost, named by its path
            (``"leaf"``).
        levels: instead of ``classes``: depth of the class folders, for a hierarchy of classes.
        exclude: patterns as in ``.gitignore``, relative to the folder, of files and folders to leave out.
        pages: ``"all"`` makes each page of a TIFF, and each frame of an animation, an image of its own.

    Raises:
        ConfigError: a setting is outside its range.
        DataError: missing folder, no images, only one class, or split folders with other names.
    """
    if levels is not None and (levels < 1 or classes != "outer"):
        raise ConfigError(f"levels of a folder must be 1 or more, without classes; found {levels}, {classes!r}")
    place = (root or Path()) / Path(path).expanduser()
    if not os.path.isdir(place):
        raise DataError(f"{place}: no such folder; folder:PATH needs one sub-folder of images per class")
    depth = class_levels(classes, levels)
    divided = all((place / part).is_dir() for part in SPLIT_FOLDERS)
    notes: list[str] = []
    parts = [place]
    if divided:
        parts = [place / part for part in SPLIT_FOLDERS]
        unused_folders = [name for name in sorted(os.listdir(place)) if name.lower() in VALIDATION_FOLDERS]
        notes += [f"{place / name}: not used; train and test are the split" for name in unused_folders]
        given = {"split": split, "train_fraction": train_fraction, "seed": seed}
        unused = [name for name, value in given.items() if value is not None]
        if unused:
            notes.append(f"{place} has the folders train and test, so {', '.join(unused)} has no effect")

    exclusion = Exclusion(place, exclude or ())
    listings = [list_part(part, exclusion, FolderRules(pages=pages)) for part in parts]
    for listing in listings:
        exclusion.check_rest(listing.names)
    notes += filter(None, [exclusion.summary])
    found = [_entries(listing, depth) for listing in listings]
    names = sorted({entry.name for entry in itertools.chain(*found)})
    labels = {name: label for label, name in enumerate(names)}
    if doubt := doubt_about(names):
        notes.append(f"{place}: {doubt}")
    labeled = [labeled_part(part, entries, labels, channels) for part, entries in zip(parts, found, strict=True)]
    nested = _first_nested_folder(listings)

    if divided:
        train, test = labeled
        check_trainable(place, train, test)
    else:
        _check_classes(place, names)
        if len(names) == 1:
            remedy = _ADVICE_ON_LEAVES if nested else "it needs a sub-folder for each of several classes"
            raise DataError(f"{place}: found 1 class, {names[0]}; {remedy}")
        train, test = divide(place, labeled[0], split, train_fraction, seed)

    if nested and classes == "outer" and levels is None:
        notes.append(f"{nested} is inside a class folder, and its images belong to that class; {_ADVICE_ON_LEAVES}")
    notes += _notes(listings)
    return DataSplits(train, test, image_size=image_size, channels=channels, crop=True, note="; ".join(notes))


def class_levels(classes: str = "outer", levels: int | None = None) -> int | None:
    """How many sub-folders, from the outermost, name a class; None for all."""
    if classes == "leaf":
        return None
    return levels or 1


def _notes(listings: Iterable[Listing]) -> list[str]:
    """A line for each kind of folder or image that is skipped."""
    skipped: dict[str, list[Path]] = {text: [] for text in _NOTES.values()}
    loose = skipped.setdefault("images beside the class folders have no class: {0}, {1} first; move them into one", [])
    unread = skipped.setdefault("these image formats are not read: {0}, {1} first; save them as .jpg or .png", [])
    for listing in listings:
        loose += [listing.folder / name for name in listing.names if "/" not in name]
        for name, why in listing.others.items():
            path = listing.folder / name
            for reason, text in _NOTES.items():
                if why.endswith(reason):
                    skipped[text].append(path)
            if name.lower().endswith(_OTHER_IMAGES):
                unread.append(path)
    return [text.format(len(paths), min(paths)) for text, paths in skipped.items() if paths]


def _check_classes(place: Path, names: Collection[str]) -> None:
    outermost = sorted({name.partition("/")[0] for name in names})
    if all(name.lower() in (*SPLIT_FOLDERS, *VALIDATION_FOLDERS) for name in outermost):
        raise DataError(
            f"{place}: {' and '.join(outermost)} are splits, not classes; name the two folders train and test, each "
            "with a sub-folder per class"
        )


def _first_nested_folder(listings: Iterable[Listing]) -> Path | None:
    for listing in listings:
        for name in listing.names:
            if name.count("/") > 1:
                return (listing.folder / name).parent
    return None


def _entries(listing: Listing, depth: int | None) -> list[Entry]:
    if listing.unlisted:
        raise DataError(f"{listing.others[listing.unlisted[0]]}; check its permissions")
    entries = []
    for name in listing.names:
        *folders, _ = name.split("/")
        if folders:
            entries.append(Entry(name, composed("/".join(folders[:depth]))))
    if not entries:
        remedy = "it needs one sub-folder of .jpg, .png, ... files per class"
        raise DataError("; ".join([f"{listing.folder}: no images in sub-folders", remedy, *_notes([listing])]))
    return sorted(entries, key=lambda entry: (entry.name, entry.path.split("/")))
