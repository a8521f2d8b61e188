"""Re-ranking without training: query expansion and k-reciprocal neighborhoods."""

import torch
from torch import Tensor

from pml_ext.errors import ConfigError, unknown
from pml_ext.evaluation import KReciprocal, NearestNeighbors, QueryExpansion, Search, nearest_of

SHORTLIST = 1000  # nearest images among which k-reciprocal re-ranking compares neighborhoods

RERANKINGS: dict[str, QueryExpansion | KReciprocal] = {
    "average": QueryExpansion(),
    "alpha": QueryExpansion(alpha=3.0),
    "k-reciprocal": KReciprocal(),
}


def reranking_of(name: str | QueryExpansion | KReciprocal) -> QueryExpansion | KReciprocal:
    """A re-ranking by its name, or itself; ConfigError for an unknown name."""
    if not isinstance(name, str):
        return name
    if name not in RERANKINGS:
        raise ConfigError(f"--rerank {unknown('re-ranking', name, RERANKINGS)}")
    return RERANKINGS[name]


def reranked(
    reranking: QueryExpansion | KReciprocal,
    search: Search,
    points: Tensor,
    count: int,
    vectors: Tensor,
    query_rows: Tensor,
) -> tuple[Tensor, Tensor]:
    """Distances and rows of the nearest vectors of each query, ``[Q, count]``; -1 if missing.

    Args:
        reranking: an expansion searches all vectors again; k-reciprocal compares the 1,000 nearest.
        search: the search of the index.
        points: normalized queries, ``[Q, D]``.
        count: number of answers.
        vectors: normalized embeddings of the index, ``[N, D]``.
        query_rows: row of each query's own image, ``[Q]``, to leave out, or -1.
    """
    if isinstance(reranking, QueryExpansion):
        _, places = search(points, min(reranking.k + 1, len(vectors)), vectors)
        places = _without(places.to(vectors.device), query_rows.to(vectors.device))[:, : reranking.k]
        return search(reranking.expanded(points, vectors[places], places >= 0), count, vectors)

    most = min(max(SHORTLIST, count) + 1, len(vectors))
    _, places = search(points, most, vectors)
    places = _without(places.to(vectors.device), query_rows.to(vectors.device))
    distances = torch.full((len(points), count), torch.inf, device=vectors.device)
    rows = torch.full((len(points), count), -1, dtype=torch.int64, device=vectors.device)
    only = torch.zeros(1, dtype=torch.int64, device=vectors.device)
    for number, near in enumerate(places):
        candidates = near[near >= 0]
        if len(candidates) == 0:
            continue
        search_of_rest = NearestNeighbors(nearest_of)
        find = reranking.finder(points[number, None], vectors[candidates], False, None, search_of_rest)
        found, indices = find(only, count)
        width = found.shape[1]
        distances[number, :width] = found[0]
        rows[number, :width] = candidates[indices[0]]
    return distances, rows


def _without(places: Tensor, query_rows: Tensor) -> Tensor:
    """Places ``[Q, K]`` with the query's own row moved to the end, as -1."""
    is_query = (places == query_rows[:, None]) & (places >= 0)
    order = is_query.to(torch.int8).argsort(dim=1, stable=True)
    return places.masked_fill(is_query, -1).gather(1, order)
