"""PML distances with a cheaper backward pass, and tiled distance matrices."""

from typing import Any, Unpack

import torch
from torch import Tensor

from .pairwise import autocast_off, euclidean_distances, gram, normalize, normalized_matrix, pair_to_full_precision
from .pairwise.generators import generator_states, using_generator_states
from .pml import BaseDistance, CosineSimilarity, DotProductSimilarity, LpDistance, ModuleSettings
from .settings import check_number


class SimilaritySettings(ModuleSettings, total=False):
    """Keyword arguments of PML's similarities."""

    p: float
    power: float


class NormalizedRows(BaseDistance):  # type: ignore[misc]
    """Mixin for PML's distances: normalization keeps a zero row zero, with gradient zero."""

    def normalize(self, embeddings: Tensor, dim: int = 1, **kwargs: Any) -> Tensor:
        """L2-normalized rows."""
        if self.p != 2 or dim != 1 or kwargs:
            return super().normalize(embeddings, dim=dim, **kwargs)  # type: ignore[no-any-return]
        return normalize(embeddings)


class _Gram(BaseDistance):  # type: ignore[misc]
    def compute_mat(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        with autocast_off(query_emb.device):
            x, y = pair_to_full_precision(query_emb, ref_emb)
            if y is None or y is x:
                return gram(x)
            return x @ y.T


class GramCosineSimilarity(NormalizedRows, _Gram, CosineSimilarity):  # type: ignore[misc]
    """PML's cosine similarity, with one matrix product in the backward pass, not two.

    A row of zeros gets gradient zero.
    """

    def __init__(self, **kwargs: Unpack[SimilaritySettings]) -> None:
        super().__init__(**kwargs)


class GramDotProductSimilarity(_Gram, DotProductSimilarity):  # type: ignore[misc]
    """PML's dot product of raw embeddings, with one product in the backward pass."""

    def __init__(self, **kwargs: Unpack[SimilaritySettings]) -> None:
        super().__init__(normalize_embeddings=False, **kwargs)


class EuclideanDistance(NormalizedRows, LpDistance):  # type: ignore[misc]
    """PML's Euclidean distance of normalized embeddings, accurate for near points too.

    Equal embeddings have distance 0 with gradient 0. *Cost:* one product of ``B x D x R`` forward and one backward (two
    with references).

    Args:
        power: exponent of the distances, at least 1; 2 for squared distances.
        kwargs: ``collect_stats``; ``normalize_embeddings`` and ``p`` are True and 2.
    """

    def __init__(self, power: float = 1, **kwargs: Unpack[ModuleSettings]) -> None:
        check_number(self, "power", power, least=1)
        super().__init__(normalize_embeddings=True, p=2, power=power, **kwargs)

    def compute_mat(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        """Distances ``[B, R]`` of normalized rows, in float32 or float64."""
        with autocast_off(query_emb.device):
            x, y = pair_to_full_precision(query_emb, ref_emb)
            return euclidean_distances(x, None if y is x else y)


def require_similarity(owner: object, distance: BaseDistance) -> None:
    """TypeError if it is not a PML distance, ValueError if smaller values mean nearer."""
    wanted = "a similarity, where larger means nearer (CosineSimilarity, DotProductSimilarity)"
    _require(owner, distance, is_inverted=True, wanted=wanted)


def require_distance(owner: object, distance: BaseDistance) -> None:
    """TypeError if it is not a PML distance, ValueError if larger values mean nearer."""
    wanted = "a distance, where smaller means nearer (LpDistance)"
    _require(owner, distance, is_inverted=False, wanted=wanted)


def _require(owner: object, distance: BaseDistance, is_inverted: bool, wanted: str) -> None:
    name = type(owner).__name__
    if not isinstance(distance, BaseDistance):
        raise TypeError(f"distance of {name} must be a distance of pytorch-metric-learning, not {distance!r}")
    if distance.is_inverted != is_inverted:
        raise ValueError(f"{name} needs {wanted}; got distance={type(distance).__name__}")


def normalized_sides(distance: BaseDistance, embeddings: Tensor, ref_emb: Tensor) -> tuple[Tensor, Tensor]:
    """Embeddings and references, normalized if the distance normalizes."""
    points = distance.maybe_normalize(embeddings)
    if ref_emb is embeddings:
        return points, points
    return points, distance.maybe_normalize(ref_emb)


def matrix_of(distance: BaseDistance, embeddings: Tensor, ref_emb: Tensor) -> tuple[Tensor, bool]:
    """The matrix of a PML distance, ``[B, R]``, and whether there are references."""
    has_references = ref_emb is not embeddings
    return distance(embeddings, ref_emb if has_references else None), has_references


def compare(distance: BaseDistance, points: Tensor, columns: Tensor) -> Tensor:
    """The distance matrix of rows that ``maybe_normalize`` has processed."""
    if type(distance).forward is not BaseDistance.forward:
        return distance(points, None if columns is points else columns)
    matrix: Tensor = distance.compute_mat(points, columns)
    if distance.power != 1:
        matrix = matrix**distance.power
    return matrix


def sides_and_matrix(distance: BaseDistance, embeddings: Tensor, ref_emb: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The results of :func:`normalized_sides`, and the matrix of a distance, ``[B, R]``.

    A distance that records statistics, or has its own ``forward``, is called as a module.
    """
    kind = _NORMALIZED.get(type(distance))
    if kind is not None and ref_emb is embeddings and _is_plain(distance):
        points, matrix = normalized_matrix(embeddings, kind)
        return points, points, matrix
    points, columns = normalized_sides(distance, embeddings, ref_emb)
    if distance.collect_stats or type(distance).forward is not BaseDistance.forward:
        return points, columns, distance(embeddings, None if ref_emb is embeddings else ref_emb)
    return points, columns, compare(distance, points, columns)


_NORMALIZED = {GramCosineSimilarity: False, EuclideanDistance: True}  # whether they are Euclidean


def _is_plain(distance: BaseDistance) -> bool:
    plain = distance.normalize_embeddings and distance.p == 2 and distance.power == 1 and not distance.collect_stats
    return plain and not torch.compiler.is_compiling()


class TiledDistance:
    """A distance matrix in tiles of anchors, which share one dropout mask."""

    def __init__(self, distance: BaseDistance, points: Tensor, columns: Tensor) -> None:
        self._distance = distance
        self._device = points.device
        self._first_point = points[:1].detach()
        self._first_column = columns[:1].detach()
        self._states = None
        self._learns = torch.is_grad_enabled()  # of the caller; inside an autograd.Function gradients are off
        if distance.training and next(distance.parameters(), None) is not None:  # only these can have dropout
            self._states = generator_states(points.device)

    def of(self, points: Tensor, columns: Tensor) -> Tensor:
        """Rows of the matrix for some anchors."""
        if self._states is None:
            return compare(self._distance, points, columns)
        # A distance that drops out nothing without gradients would give values of another function than its gradients.
        with using_generator_states(self._device, self._states), torch.set_grad_enabled(self._learns):
            return compare(self._distance, points, columns)

    def finish(self) -> None:
        """Advance the random generators as the whole matrix would."""
        if self._states is not None:
            with torch.set_grad_enabled(self._learns):
                compare(self._distance, self._first_point, self._first_column)
