"""A user's own pairs and triplets, listed in a CSV file: of images, or of vectors by their ids."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
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
class _Part:
    """The tuples of one part of the split."""

    rows: list[list[int]] = field(default_factory=list)  # numbers of images
    same: list[bool] = field(default_factory=list)  # of pairs


@dataclass
class _Listing:
    """The content of a CSV file of pairs or triplets."""

    file: Path
    kind: Kind
    names: list[str]  # of the images, each once, as the file has them first
    parts: dict[str, _Part]
    notes: list[str]  # warnings


def pairs(
    root: Path | None = None,
    path: str = "",
    vectors: str | None = None,
    image_size: int = 224,
    channels: Literal[1, 3] = 3,
) -> DataSplits:
    """Load pairs that are listed in a CSV file with the columns ``image1``, ``image2``, ``same`` and ``split``.

    ``same`` is 1 or 0 (``true`` or ``false``), ``split`` is ``train``, ``test`` or ``validation``. The images of each
    part have ``tuples``, which are :class:`pml_ext.pairwise.ListedTuples`, in place of labels. A run warns of other
    columns, and of tested images that train too.

    Args:
        root: the folder that the paths of images are relative to, by default that of the CSV file; or the folder that
            ``vectors`` is relative to.
        path: the CSV file.
        vectors: a file of vectors, as of :func:`vectors`: ``image1`` and ``image2`` are ids of vectors. None: they are
            the paths of images.
        image_size: height and width of the network's input, in pixels.
        channels: 1 (gray) or 3 (color).

    Raises:
        DataError: a file is missing, or its content is not as described; the text says what was found.
    """
    return _load("pairs", root, path, vectors, image_size, channels)


def triplets(
    root: Path | None = None,
    path: str = "",
    vectors: str | None = None,
    image_size: int = 224,
    channels: Literal[1, 3] = 3,
) -> DataSplits:
    """Load triplets that are listed in a CSV file: columns ``anchor``, ``positive``, ``negative`` and ``split``.

    The arguments, and the rest, are as in :func:`pairs`.
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
        place = listing.file.parent if root is None else root.expanduser()
        files = _image_files(listing, place)
    _note_shared_images(listing)

    parts: dict[str, Any] = {}
    for name, part in listing.parts.items():
        used, rows = np.unique(np.array(part.rows), return_inverse=True)
        tuples = ListedTuples(rows.reshape(-1, len(part.rows[0])), part.same if kind == "pairs" else None)
        about: dict[str, Any] = {"labels": np.zeros(len(used)), "class_names": [""], "tuples": tuples}
        if vectors is not None:
            chosen = found[used]
            embeddings = torch.from_numpy(source.embeddings[chosen])
            parts[name] = LabeledImages(images=embeddings, ids=source.ids[chosen], **about)
        else:
            parts[name] = LabeledImages(images=[files[number] for number in used], channels=channels, **about)
    note = "; ".join(listing.notes)
    if vectors is not None:
        return DataSplits(**parts, note=note)
    return DataSplits(**parts, image_size=image_size, channels=channels, crop=True, note=note)


# The CSV file


def _read(file: Path, kind: Kind) -> _Listing:
    """Read a CSV file; DataError for missing columns, and for a row that is no pair or triplet."""
    columns, lines = read_rows(file, f"{kind}:FILE.csv")
    wanted = COLUMNS[kind]
    missing = [name for name in wanted if name not in columns]
    if missing:
        found = first_of(columns, 8) or "none"
        raise DataError(
            f"{file}: no column {' and no '.join(missing)} among {found}; wanted {', '.join(wanted)} in the first line"
        )
    listing = _Listing(file, kind, names=[], parts={}, notes=[])
    items = [name for name in wanted if name not in ("same", "split")]
    numbers: dict[str, int] = {}  # of the images, by name
    answers: dict[tuple[int, int], tuple[bool, str]] = {}  # of each pair in any order, and its line
    for place, line in lines:
        cells = {name: str(line[name]).strip() for name in wanted}
        if any(map(is_empty, cells.values())):
            name = next(name for name in wanted if is_empty(cells[name]))
            raise _wrong(file, place, f"{name} is empty; wanted a value in each of {', '.join(wanted)}")
        split = cells["split"]
        if split not in PARTS:
            raise _wrong(file, place, unknown("split", split, PARTS))
        row = [numbers.setdefault(cells[name], len(numbers)) for name in items]
        if len(set(row)) < len(row):
            raise _wrong(file, place, _twice(kind, cells, items, row))
        part = listing.parts.setdefault(split, _Part())
        part.rows.append(row)
        if kind == "pairs":
            same = _ANSWERS.get(cells["same"].lower())
            if same is None:
                raise _wrong(file, place, f"found same {cells['same']!r}; wanted 1 or 0 (or true or false)")
            part.same.append(same)
            pair = (min(row), max(row))
            first, first_line = answers.setdefault(pair, (same, place))
            if first != same:
                raise _wrong(
                    file,
                    place,
                    f"{cells['image1']} and {cells['image2']} are {_named(same)}, and {_named(first)} in "
                    f"{first_line}; wanted one answer, delete a line",
                )
    listing.names = list(numbers)
    if kind == "triplets":
        _note_both_orders(listing)
    unused = [name for name in columns if name and name not in wanted]
    if unused:
        listing.notes.append(
            f"{file}: not used: {first_of(unused, 8)}; the columns that are used are {', '.join(wanted)}"
        )
    return listing


def _wrong(file: Path, place: str, text: str) -> DataError:
    """Return the error of a row."""
    return DataError(f"{file}, {place}: {text}")


def _twice(kind: Kind, cells: Mapping[str, str], items: list[str], row: list[int]) -> str:
    """Say which image is twice in a pair or triplet."""
    twice = next(number for number in row if row.count(number) > 1)
    places = [name for name, number in zip(items, row, strict=True) if number == twice]
    return f"{cells[places[0]]} is {' and '.join(places)}; wanted {kind} of different images"


def _note_both_orders(listing: _Listing) -> None:
    """Note triplets that are listed with positive and negative exchanged, too."""
    known: set[tuple[int, ...]] = set()
    for part in listing.parts.values():
        known.update(map(tuple, part.rows))
    exchanged = [(a, p, n) for a, p, n in known if (a, n, p) in known]
    if exchanged:
        names = ", ".join(listing.names[number] for number in min(exchanged))
        listing.notes.append(
            f"{listing.file}: {counted(len(exchanged) // 2, 'triplet')} listed in both orders, {names} first: no "
            "embedding has both right"
        )


def _named(same: bool) -> str:
    return "the same" if same else "not the same"


def _check_parts(listing: _Listing) -> None:
    """Raise DataError unless there are tuples to train and to test, with pairs of both answers."""
    for name in ("train", "test"):
        if name not in listing.parts:
            found = ", ".join(listing.parts) or "no row"
            raise DataError(f"{listing.file}: no {listing.kind} to {name} with; found {found}; wanted train and test")
    if listing.kind == "triplets":
        return
    for name, part in listing.parts.items():
        if all(part.same) or not any(part.same):
            kind = _named(part.same[0])
            raise DataError(
                f"{listing.file}: all {len(part.same)} pairs of {name} are {kind}; wanted pairs of both answers"
            )


def _note_shared_images(listing: _Listing) -> None:
    """Note tested images that train too: the test is then not one of new images."""
    trained = np.unique(np.array(listing.parts["train"].rows))
    tested = np.unique(np.array(listing.parts["test"].rows))
    shared = np.intersect1d(trained, tested)
    if len(shared):
        first = listing.names[shared[0]]
        listing.notes.append(
            f"{listing.file}: {len(shared):,} of {len(tested):,} tested images train too, {first} first, so that the "
            "test is not one of new images"
        )


# Images and vectors


def _image_files(listing: _Listing, place: Path) -> list[Path]:
    """Return the file of each image; DataError if some are missing, or one has two names."""
    files = []
    numbers: dict[str, int] = {}  # by the whole path
    missing = []
    for number, name in enumerate(listing.names):
        file = place / name
        first = numbers.setdefault(os.path.abspath(file), number)
        if first != number:
            raise DataError(f"{listing.file}: {listing.names[first]} and {name} are one image; write it in one way")
        if not file.is_file():
            missing.append(file)
        files.append(file)
    if missing:
        raise DataError(
            f"{missing[0]}: no such file, though {listing.file} lists it ({len(missing)} are missing); --data is the "
            "folder that its paths are relative to, and data.vectors the file whose ids it lists"
        )
    return files


def _rows_of_vectors(listing: _Listing, source: VectorFile) -> Any:
    """Return the row of each listed vector, ``[N]``; DataError for ids that the file does not have."""
    rows = {id: row for row, id in enumerate(source.ids.tolist())}
    missing = [name for name in listing.names if name not in rows]
    if missing:
        raise DataError(
            f"{listing.file}: {counted(len(missing), 'id')} of {len(listing.names)} are not in {source.path}, "
            f"{missing[0]!r} first; its ids are {first_of(source.ids.tolist(), 3)}"
        )
    return np.array([rows[name] for name in listing.names])


def _note_unused(listing: _Listing, source: VectorFile) -> None:
    """Note keys of the file of vectors that say something else than the list."""
    unused = list(source.unused)
    if source.split is not None:
        unused.append("split")
    if source.groups is not None:
        unused.append("groups")
    if unused:
        listing.notes.append(f"{source.path}: not used: {first_of(unused, 8)}; {listing.file} says what trains")
