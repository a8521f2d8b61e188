"""A user's own pairs and triplets of images or vectors, listed in a CSV file."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from pml_ext.errors import DataError, counted, first_of, unknown
from pml_ext.pairwise import Kind, ListedTuples

from .images import LabeledImages
from .rows import is_empty, read_rows
from .splits import DataSplits
from .vector_file import PARTS, VectorFile, read_vectors

COLUMNS: dict[Kind, tuple[str, ...]] = {
    "pairs": ("image1", "image2", "same", "split"),
    "triplets": ("anchor", "positive", "negative", "split"),
}
_ANSWERS = {"1": True, "true": True, "1.0": True, "0": False, "false": False, "0.0": False}


@dataclass
class _Listing:
    """The content of a CSV file of pairs or triplets."""

    file: Path
    kind: Kind
    names: list[str]  # of the images, each once, in the order of the file
    rows: dict[str, list[list[int]]]  # of each part: indices of images
    same: dict[str, list[bool]]  # of each part, for pairs
    notes: list[str]  # warnings


def pairs(
    root: Path | None = None,
    path: str = "",
    vectors: str | None = None,
    image_size: int = 224,
    channels: Literal[1, 3] = 3,
) -> DataSplits:
    """Load pairs listed in a CSV file.

    Its columns are ``image1``, ``image2``, ``same`` and ``split``. ``same`` is 1 or 0 (``true`` or ``false``),
    ``split`` is ``train``, ``test`` or ``validation``. Each part has :class:`pml_ext.pairwise.ListedTuples` instead of
    labels.

    Args:
        root: the folder that image paths, or ``vectors``, are relative to; by default the CSV file's.
        path: the CSV file.
        vectors: a file of vectors, whose ids are ``image1`` and ``image2``; by default they are image paths.
        image_size: height and width of the network's input, in pixels.
        channels: 1 (gray) or 3 (color).

    Raises:
        DataError: a file is missing or has invalid content.
    """
    return _load("pairs", root, path, vectors, image_size, channels)


def triplets(
    root: Path | None = None,
    path: str = "",
    vectors: str | None = None,
    image_size: int = 224,
    channels: Literal[1, 3] = 3,
) -> DataSplits:
    """Load triplets listed in a CSV file.

    Its columns are ``anchor``, ``positive``, ``negative`` and ``split``. Arguments and errors are as in :func:`pairs`.
    """
    return _load("triplets", root, path, vectors, image_size, channels)


def _load(
    kind: Kind, root: Path | None, path: str, vectors: str | None, image_size: int, channels: Literal[1, 3]
) -> DataSplits:
    listing = _read(Path(path).expanduser(), kind)
    _check_parts(listing)
    if vectors is not None:
        source = read_vectors((root or Path()) / Path(vectors).expanduser())
        found = _rows_of_vectors(listing, source)
        _note_unused(listing, source)
    else:
        files = _image_files(listing, listing.file.parent if root is None else root.expanduser())
    _note_shared_images(listing)

    parts: dict[str, Any] = {}
    for name, numbers in listing.rows.items():
        used, rows = np.unique(np.array(numbers), return_inverse=True)
        same = listing.same[name] if kind == "pairs" else None
        tuples = ListedTuples(rows.reshape(len(numbers), -1), same)
        about: dict[str, Any] = {"labels": np.zeros(len(used)), "class_names": [""], "tuples": tuples}
        if vectors is not None:
            chosen = found[used]
            embeddings = torch.from_numpy(source.embeddings[chosen])
            parts[name] = LabeledImages(images=embeddings, ids=source.ids[chosen], **about)
        else:
            parts[name] = LabeledImages(images=[files[number] for number in used], channels=channels, **about)
    if vectors is None:
        parts |= {"image_size": image_size, "channels": channels, "crop": True}
    return DataSplits(**parts, note="; ".join(listing.notes))


# The CSV file


def _read(file: Path, kind: Kind) -> _Listing:
    columns, lines = read_rows(file, f"{kind}:FILE.csv")
    needed = COLUMNS[kind]
    missing = [name for name in needed if name not in columns]
    if missing:
        found = first_of(columns, 8) or "none"
        raise DataError(
            f"{file}: no column {' and no '.join(missing)} among {found}; the first line needs {', '.join(needed)}"
        )
    listing = _Listing(file, kind, names=[], rows={}, same={}, notes=[])
    items = [name for name in needed if name not in ("same", "split")]
    numbers: dict[str, int] = {}  # of the images, by name
    answers: dict[tuple[int, ...], tuple[bool, str]] = {}  # of each pair in any order, and its line
    for place, line in lines:
        source = f"{file}, {place}"
        cells = {name: str(line[name]).strip() for name in needed}
        empty = [name for name, cell in cells.items() if is_empty(cell)]
        if empty:
            raise DataError(f"{empty[0]} is empty; fill the cell, or delete the row", source=source)
        split = cells["split"]
        if split not in PARTS:
            raise DataError(unknown("split", split, PARTS), source=source)
        row = [numbers.setdefault(cells[name], len(numbers)) for name in items]
        twice = [name for name, number in zip(items, row, strict=True) if row.count(number) > 1]
        if twice:
            text = f"{cells[twice[0]]} is both {' and '.join(twice)}; {kind} need different images"
            raise DataError(text, source=source)
        listing.rows.setdefault(split, []).append(row)
        if kind == "pairs":
            same = _ANSWERS.get(cells["same"].lower())
            if same is None:
                raise DataError(f"found same {cells['same']!r}; type 1 or 0 (or true or false)", source=source)
            listing.same.setdefault(split, []).append(same)
            first, first_line = answers.setdefault(tuple(sorted(row)), (same, place))
            if first != same:
                text = f"{cells['image1']} and {cells['image2']} are {_named(same)} here, but {_named(first)} in"
                raise DataError(f"{text} {first_line}; delete one of the lines", source=source)
    listing.names += numbers
    if kind == "triplets":
        _note_both_orders(listing)
    unused = [name for name in columns if name and name not in needed]
    if unused:
        listing.notes.append(f"{file}: not used: {first_of(unused, 8)}; the columns used are {', '.join(needed)}")
    return listing


def _note_both_orders(listing: _Listing) -> None:
    """Note triplets that are also listed with positive and negative exchanged."""
    known: set[tuple[int, ...]] = set()
    for rows in listing.rows.values():
        known.update(map(tuple, rows))
    exchanged = [(a, p, n) for a, p, n in known if (a, n, p) in known]
    if exchanged:
        names = ", ".join(listing.names[number] for number in min(exchanged))
        count = counted(len(exchanged) // 2, "triplet")
        listing.notes.append(
            f"{listing.file}: {count} listed in both orders, {names} first; no embedding can satisfy both"
        )


def _named(same: bool) -> str:
    return "the same" if same else "not the same"


def _check_parts(listing: _Listing) -> None:
    for name in ("train", "test"):
        if name not in listing.rows:
            found = ", ".join(listing.rows) or "no row"
            raise DataError(f"{listing.file}: no {listing.kind} to {name} with, found {found}; add rows of {name}")
    for name, same in listing.same.items():
        if len(set(same)) == 1:
            raise DataError(f"{listing.file}: all {len(same)} pairs of {name} are {_named(same[0])}; add others")


def _note_shared_images(listing: _Listing) -> None:
    trained = np.unique(np.array(listing.rows["train"]))
    tested = np.unique(np.array(listing.rows["test"]))
    shared = np.intersect1d(trained, tested)
    if len(shared):
        listing.notes.append(
            f"{listing.file}: {len(shared):,} of {len(tested):,} test images are also trained on, "
            f"{listing.names[shared[0]]} first, so the test does not show how new images fare"
        )


# Images and vectors


def _image_files(listing: _Listing, place: Path) -> list[Path]:
    files = []
    numbers: dict[str, int] = {}  # by the whole path
    missing = []
    for number, name in enumerate(listing.names):
        file = place / name
        first = numbers.setdefault(os.path.abspath(file), number)
        if first != number:
            raise DataError(
                f"{listing.file}: {listing.names[first]} and {name} are the same file; write its path in one way"
            )
        if not file.is_file():
            missing.append(file)
        files.append(file)
    if missing:
        raise DataError(
            f"{missing[0]}: no such file, but {listing.file} lists it ({len(missing)} are missing). Set --data to the "
            "folder of its paths, or data.vectors to the file of its ids"
        )
    return files


def _rows_of_vectors(listing: _Listing, source: VectorFile) -> Any:
    rows = {id: row for row, id in enumerate(source.ids.tolist())}
    missing = [name for name in listing.names if name not in rows]
    if missing:
        raise DataError(
            f"{listing.file}: {counted(len(missing), 'id')} of {len(listing.names)} are not in {source.path}, "
            f"{missing[0]!r} first; its ids are {first_of(source.ids.tolist(), 3)}"
        )
    return np.array([rows[name] for name in listing.names])


def _note_unused(listing: _Listing, source: VectorFile) -> None:
    given = {"split": source.split, "groups": source.groups}
    unused = [*source.unused, *(name for name, value in given.items() if value is not None)]
    if unused:
        listing.notes.append(f"{source.path}: not used: {first_of(unused, 8)}; {listing.file} decides what trains")
