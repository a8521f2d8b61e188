"""Options of queries, and their answers."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from pml_ext.errors import ConfigError
from pml_ext_train.files import utf8_of
from pml_ext_train.retrieval import SearchFilter, SearchResult

from ..collection.problems import RetrievalWarning
from ..collection.state import Image

if TYPE_CHECKING:
    from pml_ext.evaluation import KReciprocal, QueryExpansion
    from pml_ext.pml import BaseDistance

METRICS = ("euclidean", "learned")


@dataclasses.dataclass(frozen=True)
class Answer:
    """The nearest images to a query, nearest first."""

    query: str  # path or number of the query
    paths: list[str]
    distances: list[float]  # Euclidean distances of normalized embeddings, or values of the learned metric
    classes: list[str]  # sub-folder of each answer
    query_class: str | None  # sub-folder of the query if it is in the index
    ids: list[int] = dataclasses.field(default_factory=list)  # an image keeps its id while it is in the index


@dataclasses.dataclass(frozen=True)
class QueryOptions:
    """How an index is searched; ConfigError for values out of range."""

    k: int  # number of answers
    where: SearchFilter = dataclasses.field(default_factory=SearchFilter)
    metric: BaseDistance | None = None  # a learned metric; None: Euclidean
    shortlist: int | None = None  # number of nearest images by Euclidean distance that the metric re-ranks; None: all
    reranking: QueryExpansion | KReciprocal | None = None

    def __post_init__(self) -> None:
        radius = self.where.radius if self.metric is None else None  # the values of a metric may be negative
        check_query(self.k, radius)
        if self.shortlist is not None and (self.metric is None or self.shortlist < 1):
            raise ConfigError(f"--shortlist {self.shortlist}: wanted 1 or more, with --metric learned")


Answers = Callable[[Sequence[str], Tensor], list[Answer]]
"""A function from the names of queries and their embeddings to answers."""


def check_query(k: int, radius: float | None) -> None:
    """ConfigError unless k is at least 1 and the radius positive."""
    if k < 1:
        raise ConfigError(f"-k {k}: wanted 1 or more")
    if radius is not None and not radius > 0:  # NaN too
        raise ConfigError(f"--radius {radius:g}: wanted a distance above 0, of embeddings of length 1 at most 2")


def check_options(store: str | None, metric: str, shortlist: int | None, rerank: object, radius: float | None) -> None:
    """ConfigError for options of a query that do not go together."""
    if rerank is not None and (store is not None or metric != "euclidean" or radius is not None):
        raise ConfigError("--rerank ranks the index by its own distance; leave out --store, --metric and --radius")
    if store is not None and (metric != "euclidean" or shortlist is not None):
        raise ConfigError("a store compares by Euclidean distance; leave out --metric and --shortlist")


def answers_of(
    names: Sequence[str],
    query_images: Sequence[Image | None],
    results: Sequence[Sequence[SearchResult]],
    options: QueryOptions,
    reason: str,
) -> list[Answer]:
    """The first k images of each query, without its own; a warning if there are fewer."""
    answers: list[Answer] = []
    for name, image, found in zip(names, query_images, results, strict=True):
        others = found
        query_class = None
        if image is not None:  # by path, since ids differ between collections
            own_path = utf8_of(image.path)
            others = [result for result in found if utf8_of(result.path) != own_path]
            query_class = image.class_name or None  # an image in the folder itself has no class
        kept = others[: options.k]
        answer = Answer(
            query=name or f"image {len(answers)}",
            paths=[result.path for result in kept],
            distances=[result.distance for result in kept],
            classes=[result.class_name for result in kept],
            query_class=query_class,
            ids=[result.id for result in kept],
        )
        answers.append(answer)
    short = sum(len(answer.paths) < options.k for answer in answers)
    if short and options.where.radius is None:
        text = f"fewer than {options.k} answers for {short} of {len(answers)} queries: {reason}"
        warnings.warn(text, RetrievalWarning, stacklevel=4)
    return answers
