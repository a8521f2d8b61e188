"""Re-ranking by query expansion and k-reciprocal encoding, for normalized embeddings."""

import math
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..settings import check_count, check_number
from .groups import Find, Groups, neighbors_outside
from .neighbors import NearestNeighbors

_ROWS = 256  # rows of a matrix of distances in memory at a time


class Reranking(Protocol):
    """A ranking of a gallery that uses more than the distance of the query."""

    def finder(
        self, query: Tensor, reference: Tensor, itself: bool, groups: Groups | None, search: NearestNeighbors
    ) -> Find:
        """``find(rows, k)``: distances and indices of some queries' k nearest items.

        Embeddings ``[Q, D]`` and ``[R, D]`` are normalized. ``itself``: whether gallery item i is query i, which may be
        among its own nearest. ``search`` is re-ranked.
        """
        ...


class QueryExpansion:
    r"""Query expansion: each query becomes the mean of itself and its nearest items.

    .. math:: q' = q + \sum_{i \le k} w_i \, x_i, \qquad w_i = 1 \;\text{ or }\; \max(0, q \cdot x_i)^\alpha

    divided by its length; :math:`x_i` are the k nearest, without the query itself and its group. *Cost:* one more
    search.

    Args:
        k: number of nearest items, at least 1.
        alpha: exponent of the similarity, at least 0, which gives farther items less weight; None for equal weights.

    *Source:* Chum et al., Total Recall, 2007; :math:`\alpha`: Radenović et al., 2018, https://arxiv.org/abs/1711.02512.
    """

    def __init__(self, k: int = 10, alpha: float | None = None) -> None:
        check_count(self, "k", k)
        if alpha is not None:
            check_number(self, "alpha", alpha, least=0)
        self.k = k
        self.alpha = alpha

    def finder(
        self, query: Tensor, reference: Tensor, itself: bool, groups: Groups | None, search: NearestNeighbors
    ) -> Find:
        """The search of the expanded queries."""
        find = search.among(query, reference)
        every = torch.arange(len(query), device=query.device)
        columns = min(self.k, len(reference) - int(itself))
        parts = []
        for rows in search.slices(len(query), self.k * reference.shape[1]):
            _, indices = neighbors_outside(find, groups, every[rows], itself, columns, len(reference))
            parts.append(self.expanded(query[rows], reference[indices], indices >= 0))
        return search.among(torch.cat(parts), reference)

    def expanded(self, query: Tensor, nearest: Tensor, exists: Tensor) -> Tensor:
        """Expanded queries ``[Q, D]`` from nearest items ``[Q, k, D]``, if they exist."""
        weights = exists.to(query.dtype)
        if self.alpha is not None:
            similarity = torch.einsum("qd,qkd->qk", query, nearest).clamp(min=0)
            weights = weights * similarity**self.alpha
        return torch.nn.functional.normalize(query + torch.einsum("qk,qkd->qd", weights, nearest))


class KReciprocal:
    r"""k-reciprocal re-ranking: items whose neighborhoods overlap are near.

    Among queries and gallery, :math:`N(p, k)` are p and its k nearest. Mutual neighbors :math:`R(p, k) = \{g \in N(p,
    k) : p \in N(g, k)\}` are extended to :math:`R^*(p, k_1)` by the sets :math:`R(g, k_1 / 2)` of those :math:`g \in
    R(p, k_1)` for which :math:`|R(p, k_1) \cap R(g, k_1 / 2)| \ge \tfrac{2}{3} |R(g, k_1 / 2)|`. Then

    .. math::
        V_{pg} \propto [\,g \in R^*(p, k_1)\,] \, e^{-d_{pg}}, \qquad
        V'_p = \frac{1}{k_2} \sum_{g} V_g, \qquad
        d_J(p, g) = 1 - \frac{\sum_j \min(V'_{pj}, V'_{gj})}{\sum_j \max(V'_{pj}, V'_{gj})}, \qquad
        d^* = (1 - \lambda) \, d_J + \lambda \, d

    Rows of V sum to 1; the mean is over the :math:`k_2` nearest of p, itself included. :math:`d_{pg}` is the squared
    Euclidean distance, divided by the greatest of p, as in the authors' program. Groups are left out of the ranking,
    not of the neighborhoods.

    *Cost:* all distances of queries and gallery twice.

    Args:
        k1: number of neighbors.
        k2: number of neighborhoods in a mean; 1 for none.
        weight: :math:`\lambda`, from 0 to 1, of the distance.

    *Source:* Zhong et al., Re-ranking Person Re-identification with k-reciprocal Encoding, 2017,
    https://arxiv.org/abs/1701.08398.
    """

    def __init__(self, k1: int = 20, k2: int = 6, weight: float = 0.3) -> None:
        check_count(self, "k1", k1)
        check_count(self, "k2", k2)
        check_number(self, "weight", weight, least=0, most=1)
        self.k1 = k1
        self.k2 = k2
        self.weight = weight

    def finder(
        self, query: Tensor, reference: Tensor, itself: bool, groups: Groups | None, search: NearestNeighbors
    ) -> Find:
        """The ranking by the new distance; ignores ``search``."""
        points = reference if itself else torch.cat([query, reference])
        first = len(points) - len(reference)  # of the gallery
        neighbors, farthest = self._neighbors(points)
        encoded = self._encoded(points, neighbors, farthest)
        by_column = encoded[first:].tocsc()
        farthest = farthest.to(points.device)

        def find(rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
            distances = []
            indices = []
            for part in torch.split(rows, _ROWS):
                plain = _squared_distances(points[part], reference) / farthest[part, None]
                jaccard = np.stack([_jaccard_distances(encoded[row], by_column) for row in part.tolist()])
                values = (1 - self.weight) * torch.from_numpy(jaccard).to(plain) + self.weight * plain
                nearest = values.topk(min(k, len(reference)), dim=1, largest=False)
                distances.append(nearest.values)
                indices.append(nearest.indices)
            return torch.cat(distances), torch.cat(indices)

        return find

    def _neighbors(self, points: Tensor) -> tuple[Any, Tensor]:
        most = min(max(self.k1 + 1, self.k2), len(points))
        nearest = []
        farthest = []
        for rows in torch.split(torch.arange(len(points), device=points.device), _ROWS):
            distances = _squared_distances(points[rows], points)
            farthest.append(distances.amax(1).cpu())
            distances[torch.arange(len(rows)), rows] = -1
            nearest.append(distances.topk(most, dim=1, largest=False).indices.cpu())
        return torch.cat(nearest).numpy(), torch.cat(farthest).clamp(min=1e-12)

    def _encoded(self, points: Tensor, neighbors: Any, farthest: Tensor) -> Any:
        from scipy import sparse

        reciprocal = _reciprocal(neighbors[:, : self.k1 + 1])
        of_half = _reciprocal(neighbors[:, : math.floor(self.k1 / 2 + 0.5) + 1])
        common = (reciprocal @ of_half.T).multiply(reciprocal).tocoo()
        sizes = np.asarray(of_half.sum(1)).ravel()
        extends = 3 * common.data >= 2 * sizes[common.col]
        shape = reciprocal.shape
        ones = np.ones(int(extends.sum()))
        chosen = sparse.csr_matrix((ones, (common.row[extends], common.col[extends])), shape)
        extended = (reciprocal + chosen @ of_half).tocoo()

        values = np.empty(extended.nnz)
        for part in np.array_split(np.arange(extended.nnz), extended.nnz // (1 << 16) + 1):
            p = torch.from_numpy(extended.row[part]).long()
            g = torch.from_numpy(extended.col[part]).long()
            differences = points[p.to(points.device)] - points[g.to(points.device)]
            if points.device.type == "mps":  # has no float64
                differences = differences.cpu()
            distances = differences.double().square().sum(1).cpu()
            values[part] = torch.exp(-distances / farthest[p].double()).numpy()
        weights = sparse.csr_matrix((values, (extended.row, extended.col)), shape)
        sums = np.asarray(weights.sum(1)).ravel()
        encoded = sparse.diags(1 / sums) @ weights
        if self.k2 > 1:
            nearest = neighbors[:, : self.k2]
            encoded = _incidence(nearest) @ encoded / nearest.shape[1]
        return encoded.tocsr()


def _incidence(neighbors: Any) -> Any:
    from scipy import sparse

    count, columns = neighbors.shape
    rows = np.repeat(np.arange(count), columns)
    return sparse.csr_matrix((np.ones(neighbors.size), (rows, neighbors.ravel())), (count, count))


def _reciprocal(neighbors: Any) -> Any:
    matrix = _incidence(neighbors)
    return matrix.multiply(matrix.T).tocsr()


def _squared_distances(rows: Tensor, columns: Tensor) -> Tensor:
    return (2 - 2 * rows @ columns.T).clamp(min=0)


def _jaccard_distances(row: Any, by_column: Any) -> Any:
    common = np.zeros(by_column.shape[0])
    for column, value in zip(row.indices, row.data, strict=True):
        part = slice(by_column.indptr[column], by_column.indptr[column + 1])
        common[by_column.indices[part]] += np.minimum(value, by_column.data[part])
    return 1 - common / (2 - common)


def check_reranking(reranking: Any, knn_func: Any) -> None:
    """Raise TypeError unless it is a re-ranking, ValueError unless the search is Euclidean."""
    if isinstance(reranking, type) or not hasattr(reranking, "finder"):
        raise TypeError(f"reranking must be an object such as QueryExpansion() or KReciprocal(); got {reranking!r}")
    if knn_func is None:
        return
    is_euclidean = hasattr(knn_func, "distance") and knn_func.distance is None
    if not is_euclidean:
        raise ValueError(
            "reranking ranks by the Euclidean distance of normalized embeddings; leave out knn_func, or pass a "
            "NearestNeighbors without distance"
        )
