"""The tests of a run: metrics of a split by one search, and embeddings that have collapsed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..data import raw_pixels
from ..errors import TrainingError
from ..evaluation import (
    Evaluation,
    NearestNeighbours,
    default_neighbours,
    evaluate,
    learned_metric,
    neighbours_under,
    reranked_under,
)
from .finite import first_bad
from .recipe import EvaluationTable
from .stages import Stages
from .view import View

COLLAPSED = 0.99  # mean cosine similarity of different images above which the embeddings count as one point
NEIGHBOURS = 8  # kept of a search, for the report

Metrics = dict[str, float]


def metrics_before(view: View) -> dict[str, Metrics]:
    """The metrics of raw pixels and of the untrained network, in one pass over the test images.

    Args:
        view: of the run, before it trains.
    """
    embedded = view.embedded("test", also=raw_pixels)
    assert embedded.also is not None
    pixels = nn.functional.normalize(embedded.also)
    raw = _evaluate(view.recipe.evaluation, pixels, embedded.labels)
    return {"raw": raw.metrics, "before": metrics_of(view, "test")}


def metrics_after(view: View, stages: Stages) -> dict[str, Metrics]:
    """The metrics of the trained network on test and training images, and of the metric that it has learned.

    Args:
        view: of the run, with the weights that are tested.
        stages: of the run, of which a loss may have a learned metric.
    """
    metrics = {"after": metrics_of(view, "test"), "training": metrics_of(view, "train", clustering=False)}
    # the distance that a component of the last stage declares, or one of another stage
    metric = learned_metric(stages[-1].loss.modules()) or learned_metric(stages.parts())
    if metric is not None:
        metrics["learned_metric"] = metrics_by(view, "test", neighbours_under(metric))
        if shortlist := view.recipe.evaluation.shortlist:
            # One more than the recipe says, since the query itself is among its own nearest.
            metrics["shortlist"] = metrics_by(view, "test", reranked_under(metric, shortlist + 1))
    return metrics


def metrics_of(view: View, split: str, clustering: bool = True) -> Metrics:
    """The metrics of a split, each image searched among all others of it by cosine similarity.

    Args:
        view: of the run.
        split: a key of its splits.
        clustering: whether clusters are wanted too.

    Raises:
        TrainingError: embeddings that are not finite.
    """
    result = _evaluate(view.recipe.evaluation, _directions(view, split), view.labels(split), clustering)
    view.once(("neighbours", split), lambda: (result.distances, result.indices))
    return result.metrics


def metrics_by(view: View, split: str, search: NearestNeighbours) -> Metrics:
    """The metrics of retrieval by another search than that of the nearest in cosine similarity.

    Args:
        view: of the run.
        split: a key of its splits.
        search: of embeddings that are not normalized.
    """
    embedded = view.embedded(split)
    return _evaluate(view.recipe.evaluation, embedded.embeddings, embedded.labels, False, search).metrics


def nearest(view: View, split: str) -> tuple[Tensor, Tensor]:
    """The nearest neighbours of each image among the others of its split, on the CPU; from its test, if there was one.

    Args:
        view: of the run.
        split: a key of its splits.

    Returns:
        Distances and indices, ``[N, K]``; K is 8, or as many as there are.
    """

    def search() -> tuple[Tensor, Tensor]:
        points = _directions(view, split)
        distances, indices = default_neighbours()(points, NEIGHBOURS, points, ref_includes_query=True)
        return distances.cpu(), indices.cpu()

    return view.once(("neighbours", split), search)


def _directions(view: View, split: str) -> Tensor:
    embeddings = view.embeddings(split)
    if (bad := first_bad({"": embeddings})) is not None:
        raise TrainingError(f"the network gives {bad[1]} for images to test; try a lower optimizer.lr")
    return nn.functional.normalize(embeddings)


def _evaluate(
    table: EvaluationTable, points: Tensor, labels: Tensor, clustering: bool = True,
    search: NearestNeighbours | None = None,
) -> Evaluation:  # fmt: skip
    settings: dict[str, Any] = {"clusters_per_class": table.clusters_per_class if clustering else ()}
    return evaluate(
        points, labels, recall_at=table.recall_at, precision_at=table.precision_at, lone_queries=table.lone_queries,
        search=search, keep=NEIGHBOURS if search is None else 0, **settings,
    )  # fmt: skip


def mean_similarity(embeddings: Tensor) -> float:
    """The mean cosine similarity of different rows of ``[N, D]``: 1 when all lie on one point.

    It is ``(|sum of unit rows|^2 - N) / (N (N - 1))``, linear in N.
    """
    count = len(embeddings)
    if count < 2:
        return 0.0
    total = nn.functional.normalize(embeddings.to("cpu", torch.float64)).sum(dim=0)  # MPS has no float64
    return float((total.square().sum() - count) / (count * (count - 1)))
