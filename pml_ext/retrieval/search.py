"""The nearest images of an index: by Euclidean distance, exactly or with faiss, or by a learned metric."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..errors import ConfigError, shortened, unknown
from ..evaluation import Search, neighbors_under, reranked_under
from .checks import RetrievalWarning
from .embedding import class_of
from .exact import nearest_among, nearest_of
from .faiss_index import FaissIndex, check_effort
from .index import Gallery, IndexedImages
from .table import Numbers

if TYPE_CHECKING:
    from ..pml import BaseDistance

METRICS = ("euclidean", "learned")

__all__ = ["METRICS", "Answer", "RetrievalWarning", "answers_of", "check_search", "rows_within", "search_of"]


@dataclasses.dataclass(frozen=True)
class Answer:
    """What was found for one query.

    Args:
        query: the query's path, or its number.
        paths: the nearest images, nearest first.
        distances: of these images: Euclidean between normalized embeddings, or of the learned metric.
        classes: the sub-folder of each, where the indexed folder has one per class.
        query_class: the query's sub-folder, where it lies in the indexed folder.
        ids: of these images, which they keep while they are in the index; none of an index that is not on the disk.
    """

    query: str
    paths: list[str]
    distances: list[float]
    classes: list[str]
    query_class: str | None
    ids: list[int] = dataclasses.field(default_factory=list)


def check_search(
    held: Gallery, k: int, learned: bool, shortlist: int | None, effort: int | None, within: str | None = None
) -> None:
    """Refuses options of a query that are out of range, or that nothing would heed.

    Raises:
        ConfigError: k, shortlist or effort below 1, a shortlist without a learned metric, or an effort of a search
            that has none.
    """
    if k < 1:
        raise ConfigError(f"-k {k}: wanted 1 or more")
    if shortlist is not None:
        if not learned:
            raise ConfigError("--shortlist goes with --metric learned")
        if shortlist < 1:
            raise ConfigError(f"--shortlist {shortlist}: wanted 1 or more")
    check_effort(effort)
    if effort is None:
        return
    if held.faiss is None:
        raise ConfigError(f"--effort {effort}: {held.place} is searched exactly; leave out --effort")
    if not held.faiss.setting:
        raise ConfigError(
            f"--effort {effort}: the index {held.factory} has no nprobe and no efSearch; leave out --effort"
        )
    if within is not None:
        raise ConfigError(f"--effort {effort}: the images of a class are searched exactly; leave out --effort")
    if learned and shortlist is None:
        raise ConfigError(
            f"--effort {effort}: the learned metric is compared with all images; "
            "add --shortlist K, or leave out --effort"
        )


def rows_within(held: Gallery, name: str) -> Numbers:
    """The images of a class, by number.

    Args:
        held: the index.
        name: of the class, a sub-folder.

    Raises:
        ConfigError: no such class; the text has the nearest names.
    """
    embedded = held.embedded
    if isinstance(embedded, IndexedImages) and embedded.table is not None:
        names, numbers = embedded.table.class_names, embedded.table.class_numbers
    else:
        names = [*dict.fromkeys(embedded.classes)]
        numbers = np.array([names.index(each) for each in embedded.classes], dtype=np.int32)
    if name not in names:
        raise ConfigError(f"--within {shortened(name, 100)}: {unknown('class', name, sorted(names))}")
    return np.flatnonzero(numbers == names.index(name))


def search_of(
    held: Gallery, metric: BaseDistance | None, shortlist: int | None, effort: int | None, rows: Numbers | None = None
) -> Search:
    """What finds the nearest images of an index.

    Args:
        held: the index; its faiss finds the nearest by Euclidean distance, where it has one.
        metric: a learned metric to search by instead.
        shortlist: how many of the nearest by Euclidean distance the metric re-ranks; by default it is compared with
            all images.
        effort: of faiss.
        rows: the images that count, all by default; these are searched exactly.
    """
    nearest: Search = nearest_of
    if rows is not None:
        nearest = functools.partial(nearest_among, rows)
    elif held.faiss is not None:
        nearest = functools.partial(_by_faiss, held.faiss, effort)
    if metric is None:
        return nearest
    if shortlist is not None:
        return reranked_under(metric, shortlist, nearest, normalized=True).search
    learned = neighbors_under(metric).search
    return learned if rows is None else functools.partial(_among, learned, rows)


def _by_faiss(
    index: FaissIndex, effort: int | None, points: Tensor, k: int, _reference: Tensor
) -> tuple[Tensor, Tensor]:
    return index.search(points, k, effort)


def _among(search: Search, rows: Numbers, points: Tensor, k: int, reference: Tensor) -> tuple[Tensor, Tensor]:
    some = torch.from_numpy(rows).to(reference.device)
    distances, numbers = search(points, k, reference[some])
    return distances, some[numbers]


def answers_of(
    names: Sequence[str],
    own: Sequence[int | None],
    points: Tensor,
    k: int,
    held: Gallery,
    search: Search,
    count: int | None = None,
    radius: float | None = None,
    larger: bool = False,
) -> list[Answer]:
    """The answers to queries; an image of the index is no answer to itself.

    Args:
        names: the path of every query, "" for one that is no file.
        own: the numbers of :func:`own_numbers`.
        points: their embeddings, ``[Q, D]``.
        k: how many.
        held: the index.
        search: of :func:`search_of`.
        count: images that are searched, all by default.
        radius: the largest distance of an answer.
        larger: of a metric by which larger is nearer, the smallest value of one.
    """
    embedded = held.embedded
    images = len(embedded.paths) if count is None else count
    distances, numbers = search(points, min(k + 1, images), embedded.embeddings)
    answers = []
    for row, (near, values) in enumerate(zip(numbers.tolist(), distances.tolist(), strict=True)):
        kept = [
            (number, float(value))
            for number, value in zip(near, values, strict=True)
            if number not in (-1, own[row]) and (radius is None or (value >= radius if larger else value <= radius))
        ][:k]
        paths = [embedded.paths[number] for number, _ in kept]
        mine = own[row]
        answers.append(
            Answer(
                names[row] or f"image {row}",
                paths,
                [value for _, value in kept],
                [class_of(path) for path in paths],
                class_of(embedded.paths[mine]) or None if mine is not None else None,
                [int(embedded.ids[number]) for number, _ in kept] if isinstance(embedded, IndexedImages) else [],
            )
        )
    if radius is None:
        _warn_of_fewer(answers, k, held, images)
    _warn_of_gone(answers, held)
    return answers


def own_numbers(held: Gallery, names: Sequence[str]) -> list[int | None]:
    """The number of every query among the indexed images, None for one that is not there.

    Paths are compared as text: what is looked up on the disk is the queries and the folder, never the indexed images.

    Args:
        held: the index.
        names: the path of every query, "" for one that is no file.
    """
    return [_own_number(held, name) if name else None for name in names]


def _own_number(held: Gallery, name: str) -> int | None:
    for path in _within(held.folder, name):
        with contextlib.suppress(ValueError):  # it is not there
            return held.embedded.paths.index(path)
    return None


def _within(folder: str, name: str) -> Iterator[str]:
    """What a file is called relative to a folder: by its own name, and by that of what it links to."""
    if "\0" in name:  # no file; whoever reads it says so
        return
    parent, last = os.path.split(name)
    place = os.path.join(os.path.realpath(parent), last)
    yield from _inside(folder, place)
    if os.path.islink(place) or last in ("", ".", ".."):
        yield from _inside(folder, os.path.realpath(place))


def _inside(folder: str, place: str) -> Iterator[str]:
    if place.startswith(folder):
        yield place.removeprefix(folder).replace(os.sep, "/")


def rows_as_indexed(held: Gallery, names: Sequence[str], own: Sequence[int | None]) -> dict[int, int]:
    """Queries whose embedding the index has: files of it that have the size and the time that they had then.

    Args:
        held: the index.
        names: as of :func:`own_numbers`.
        own: what that returned.

    Returns:
        ``{number of the query: number of its image}``.
    """
    sizes, times = held.embedded.sizes, held.embedded.times
    rows: dict[int, int] = {}
    for query, (name, number) in enumerate(zip(names, own, strict=True)):
        if number is None or sizes is None or times is None:
            continue
        with contextlib.suppress(OSError):  # whoever reads it says why it cannot be read
            about = os.stat(name)
            if (sizes[number], times[number]) == (about.st_size, about.st_mtime_ns):
                rows[query] = number
    return rows


def _warn_of_fewer(answers: Sequence[Answer], k: int, held: Gallery, images: int) -> None:
    short = [answer for answer in answers if len(answer.paths) < k]
    if not short:
        return
    fewest = min(short, key=lambda answer: len(answer.paths))
    everything = images == len(held.embedded.paths)
    why = f"the index holds {images} images" + " of the class" * (not everything)
    if everything and images - 1 > len(fewest.paths):
        why += f", and {held.factory} finds no more; an index by --index exact does"
    warnings.warn(
        f"fewer than {k} answers for {len(short)} of {len(answers)} queries ({fewest.query}: "
        f"{len(fewest.paths)}): {why}",
        RetrievalWarning,
        stacklevel=4,
    )


def _warn_of_gone(answers: Sequence[Answer], held: Gallery) -> None:
    """Says which answers are no longer there, of an index that knows what to type."""
    if not held.again:
        return
    folder = str(held.embedded.folder)
    paths = {path for answer in answers for path in answer.paths}
    gone = sorted(path for path in paths if not os.path.exists(os.path.join(folder, path)))
    if not gone:
        return
    if not os.path.isdir(folder):
        text = f"the indexed folder {folder} is gone or moved; put it back, or index it where it is now"
    else:
        text = (
            f"{len(gone)} of {len(paths)} answers are gone since they were indexed, {gone[0]} first; type: {held.again}"
        )
    warnings.warn(text, RetrievalWarning, stacklevel=4)
