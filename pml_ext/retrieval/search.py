"""The nearest images of an index: by Euclidean distance, exactly or with faiss, or by a learned metric."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from ..errors import ConfigError
from ..evaluation import Search, default_neighbours, neighbours_under, reranked_under
from .embedding import Embedded, class_of
from .faiss_index import FaissIndex, check_effort
from .index import Gallery

if TYPE_CHECKING:
    from ..pml import BaseDistance

METRICS = ("euclidean", "learned")


class RetrievalWarning(UserWarning):
    """What was asked for could be had in part alone: fewer answers, low recall, an image that cannot be shown."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """What was found for one query.

    Args:
        query: the query's path, or its number.
        paths: the nearest images, nearest first.
        distances: of these images: Euclidean between normalized embeddings, or of the learned metric.
        classes: the sub-folder of each, where the indexed folder has one per class.
        query_class: the query's sub-folder, where it lies in the indexed folder.
    """

    query: str
    paths: list[str]
    distances: list[float]
    classes: list[str]
    query_class: str | None


def check_search(held: Gallery, k: int, learned: bool, shortlist: int | None, effort: int | None) -> None:
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
        raise ConfigError(f"--effort {effort}: the index {held.factory} has no nprobe and no efSearch; "
                          "leave out --effort")  # fmt: skip
    if learned and shortlist is None:
        raise ConfigError(f"--effort {effort}: the learned metric is compared with all images; "
                          "add --shortlist K, or leave out --effort")  # fmt: skip


def search_of(held: Gallery, metric: BaseDistance | None, shortlist: int | None, effort: int | None) -> Search:
    """What finds the nearest images of an index.

    Args:
        held: the index; its faiss finds the nearest by Euclidean distance, where it has one.
        metric: a learned metric to search by instead.
        shortlist: how many of the nearest by Euclidean distance the metric re-ranks; by default it is compared with
            all images.
        effort: of faiss.
    """
    nearest = default_neighbours().search
    if held.faiss is not None:
        nearest = functools.partial(_by_faiss, held.faiss, effort)
    if metric is None:
        return nearest
    if shortlist is None:
        return neighbours_under(metric).search
    return reranked_under(metric, shortlist, nearest).search


def _by_faiss(
    index: FaissIndex, effort: int | None, points: Tensor, k: int, _reference: Tensor
) -> tuple[Tensor, Tensor]:
    return index.search(points, k, effort)


def answers_of(names: Sequence[str], points: Tensor, k: int, held: Gallery, search: Search) -> list[Answer]:
    """The answers to queries; an image of the index is no answer to itself.

    Args:
        names: the path of every query, "" for one that is a tensor.
        points: their embeddings, ``[Q, D]``.
        k: how many.
        held: the index.
        search: of :func:`search_of`.
    """
    embedded = held.embedded
    own = own_numbers(embedded, names)
    distances, numbers = search(points, min(k + 1, len(embedded.paths)), embedded.embeddings)
    answers = []
    for row, (near, values) in enumerate(zip(numbers.tolist(), distances.tolist(), strict=True)):
        kept = [(number, value) for number, value in zip(near, values, strict=True) if number not in (-1, own[row])]
        paths = [embedded.paths[number] for number, _ in kept[:k]]
        mine = own[row]
        answers.append(Answer(
            names[row] or f"image {row}", paths, [float(value) for _, value in kept[:k]],
            [class_of(path) for path in paths], class_of(embedded.paths[mine]) or None if mine is not None else None,
        ))  # fmt: skip
    _warn_of_fewer(answers, k, held)
    return answers


def own_numbers(embedded: Embedded, names: Sequence[str]) -> list[int | None]:
    """The number of every query among the indexed images, None for one that is not there.

    Paths are compared as text: what is looked up on the disk is the queries and the folder, never the indexed images.

    Args:
        embedded: the indexed images.
        names: the path of every query, "" for one that is a tensor.
    """
    folder = embedded.folder.resolve()
    wanted = [_within(folder, Path(name)) if name else [] for name in names]
    sought = {path for paths in wanted for path in paths}
    numbers = {path: number for number, path in enumerate(embedded.paths) if path in sought} if sought else {}
    return [next((numbers[path] for path in paths if path in numbers), None) for paths in wanted]


def _within(folder: Path, path: Path) -> list[str]:
    """What a file is called relative to a folder: by its own name, and by that of what it links to."""
    places = (path.parent.resolve() / path.name, path.resolve())
    return [place.relative_to(folder).as_posix() for place in places if place.is_relative_to(folder)]


def _warn_of_fewer(answers: Sequence[Answer], k: int, held: Gallery) -> None:
    short = [answer for answer in answers if len(answer.paths) < k]
    if not short:
        return
    fewest = min(short, key=lambda answer: len(answer.paths))
    images = len(held.embedded.paths)
    why = f"the index holds {images} images"
    if images - 1 > len(fewest.paths):
        why += f", and {held.factory} finds no more; an index without --index does"
    warnings.warn(f"fewer than {k} answers for {len(short)} of {len(answers)} queries ({fewest.query}: "
                  f"{len(fewest.paths)}): {why}", RetrievalWarning, stacklevel=4)  # fmt: skip
