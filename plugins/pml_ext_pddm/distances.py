"""The position-dependent metric as a PML distance, for losses, miners and searches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pml_ext.plugin import (
    BaseDistance,
    EuclideanDistance,
    NormalizedRows,
    RunView,
    autocast_off,
    check_batch,
    check_count,
    check_number,
    euclidean_distances,
    pair_to_full_precision,
)

from .functional import Head, score_matrix, score_pairs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN = 1000  # largest number of images in the figure


class _Score(nn.Module):
    """The last layer of Eq. (2), with a weight ``[H]``: PML's hooks expect no single row."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        layer = nn.Linear(hidden, 1)
        self.weight = nn.Parameter(layer.weight.detach()[0])
        self.bias = nn.Parameter(layer.bias.detach())


class PDDMDistance(NormalizedRows, BaseDistance):  # type: ignore[misc]
    r"""A similarity learned from the difference and the mean of two embeddings (PDDM), Eq. (2).

    .. math::
        u = |f(x_i) - f(x_j)|, \quad v = (f(x_i) + f(x_j)) / 2, \quad
        u' = r(\sigma(W_u u + b_u)), \quad v' = r(\sigma(W_v v + b_v)), \\
        c = \sigma(W_c [u'; v'] + b_c), \quad S_{ij} = W_s c + b_s \quad (2)

    with normalized embeddings, :math:`\sigma` the ReLU and :math:`r(x) = x / |x|_2`, r(0) = 0. S is symmetric, without
    a fixed range; larger means more similar (``is_inverted``). Its parameters need an optimizer.
    :class:`pml_ext.PDDMLoss` trains it as in the paper. A run also tests with it, and ``pml-ext query --metric
    learned`` searches with it.

    Dropout follows the layers ``difference``, ``position`` and ``combine``, in training mode with gradients. All pairs
    of a call share one dropout mask per layer.

    *Cost:* ``2 H (D + 2 H)`` operations per unordered pair of a set, and ``2 H D`` per embedding; memory of the matrix
    and ``memory_budget``.

    *Export:* models exported by ``torch.jit.trace``, ``torch.export`` and ``torch.onnx.export`` accept any number of
    rows, without tiles.

    Args:
        embedding_size: D, the size of the embeddings.
        hidden_size: H, of all layers; D by default, as in the paper.
        dropout: probability, from 0 to less than 1; 0.5 in the paper.
        position: False leaves out v, "from the feature difference only" (LMDM of Table 1).
        memory_budget: bytes for the pairs of one tile; by default 4 MiB on the CPU, 16 MiB on a GPU.
        normalize_embeddings: False uses the raw embeddings.
        collect_stats: whether PML's statistics of the embeddings are recorded.

    Example:
        >>> distance = PDDMDistance(embedding_size=8)
        >>> distance(torch.randn(4, 8)).shape
        torch.Size([4, 4])

    *Source:* Huang et al., 2016, https://arxiv.org/abs/1610.08904.
    """

    capabilities = frozenset({"tiles"})

    @property
    def expected_failed_checks(self) -> dict[str, str]:
        """The conformance check that dropout fails."""
        if self.dropout:
            return {"check_modes": "dropout acts in training alone"}
        return {}

    def __init__(
        self,
        embedding_size: int,
        hidden_size: int | None = None,
        dropout: float = 0.5,
        position: bool = True,
        memory_budget: int | None = None,
        normalize_embeddings: bool = True,
        collect_stats: bool | None = None,
    ) -> None:
        check_count(self, "embedding_size", embedding_size)
        hidden = embedding_size if hidden_size is None else hidden_size
        check_count(self, "hidden_size", hidden)
        check_number(self, "dropout", dropout, least=0, below=1)
        if memory_budget is not None:
            check_count(self, "memory_budget", memory_budget)
        super().__init__(is_inverted=True, normalize_embeddings=normalize_embeddings, collect_stats=collect_stats)
        self.embedding_size = embedding_size
        self.hidden_size = hidden
        self.dropout = dropout
        self.memory_budget = memory_budget
        self.difference = nn.Linear(embedding_size, hidden)
        self.position = nn.Linear(embedding_size, hidden) if position else None
        self.combine = nn.Linear(2 * hidden if position else hidden, hidden)
        self.score = _Score(hidden)

    @property
    def metric(self) -> PDDMDistance:
        """The distance itself."""
        return self

    # PML's distance

    def forward(self, query_emb: Tensor, ref_emb: Tensor | None = None) -> Tensor:
        """The scores of all pairs, ``[B, R]``, in float32 or wider."""
        self._check(query_emb=query_emb, ref_emb=ref_emb)
        with autocast_off(query_emb.device):
            query_emb, ref_emb = pair_to_full_precision(query_emb, ref_emb)
            return super().forward(query_emb, None if ref_emb is query_emb else ref_emb)  # type: ignore[no-any-return]

    def compute_mat(self, query_emb: Tensor, ref_emb: Tensor | None) -> Tensor:
        """The scores of all pairs, ``[B, R]``."""
        self._check(query_emb=query_emb, ref_emb=ref_emb)
        with autocast_off(query_emb.device):
            x = self.normalized(query_emb)
            y = None if ref_emb is None or ref_emb is query_emb else self.normalized(ref_emb)
            x, y = pair_to_full_precision(x, y)
            return score_matrix(self.head(x.dtype), x, y, self.tile(x))

    def pairwise_distance(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        """The scores of row with row, ``[N]``."""
        self._check(query_emb=query_emb, ref_emb=ref_emb)
        with autocast_off(query_emb.device):
            x, y = pair_to_full_precision(self.normalized(query_emb), self.normalized(ref_emb))
            assert y is not None
            return score_pairs(self.head(x.dtype), x, y, self.tile(x))

    def _check(self, **given: Tensor | None) -> None:
        for name, x in given.items():
            if x is None:
                continue
            check_batch(x, names=(name, ""))
            if x.shape[1] != self.embedding_size:
                raise ValueError(
                    f"{name} must have embedding_size={self.embedding_size} columns; got shape {tuple(x.shape)}"
                )

    def normalized(self, embeddings: Tensor) -> Tensor:
        """Normalized embeddings ``[B, D]``, in the wider dtype of input and weights."""
        self._check(embeddings=embeddings)
        dtype = torch.promote_types(embeddings.dtype, self.score.weight.dtype)
        return self.maybe_normalize(embeddings.to(dtype))  # type: ignore[no-any-return]

    # The weights

    def head(self, dtype: torch.dtype | None = None) -> Head:
        """The weights of Eq. (2), with dropout masks."""
        dtype = dtype or self.score.weight.dtype
        w_u, b_u = self._layer(self.difference, dtype)
        w_v, b_v = (None, None) if self.position is None else self._layer(self.position, dtype)
        w_c, b_c = self._layer(self.combine, dtype)
        return Head(w_u, b_u, w_v, b_v, w_c, b_c, self.score.weight[None].to(dtype), self.score.bias.to(dtype))

    def _layer(self, layer: nn.Linear, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        weight = layer.weight.to(dtype)
        bias = layer.bias.to(dtype)
        if not (self.training and self.dropout and torch.is_grad_enabled()):
            return weight, bias
        mask = nn.functional.dropout(torch.ones_like(bias), self.dropout)
        return weight * mask[:, None], bias * mask

    def tile(self, like: Tensor) -> int:
        """Pairs per tile."""
        budget = self.memory_budget or (4 if like.device.type == "cpu" else 16) << 20
        pair = like.element_size() * (3 * self.embedding_size + 5 * self.hidden_size)
        return max(1, budget // pair)

    # Taking part in a run

    def figures(self, run: RunView) -> dict[str, Figure]:
        """Plot learned scores and cosine similarities of test pairs (Fig. 1b)."""
        from pml_ext.plugin import figures

        embeddings = run.embeddings(run.queries)
        labels = run.labels(run.queries)
        return {
            "Learned scores beside cosine similarities, test images": figures.similarity_distributions(
                {"cosine similarity": (embeddings, labels), "learned score": (embeddings, labels)},
                max_items=_SHOWN,
                learned={"learned score": self},
            )
        }


class MahalanobisDistance(EuclideanDistance):
    r"""A learned Mahalanobis distance, the position-independent baseline of Sec. 1.

    .. math:: D_{ij} = \|L (f(x_i) - f(x_j))\|_2 = \sqrt{(f(x_i) - f(x_j))^T M (f(x_i) - f(x_j))}, \quad M = L^T L

    with normalized embeddings and a square matrix L, initially the identity, which gives the Euclidean distance.
    Smaller means nearer. Its parameters need an optimizer. A run also tests with it.

    *Cost:* one product of ``B x D x D`` for each side beyond the Euclidean distance.

    Args:
        embedding_size: D, the size of the embeddings.
        kwargs: ``power`` and ``collect_stats``.

    Example:
        >>> MahalanobisDistance(embedding_size=8)(torch.randn(4, 8)).shape
        torch.Size([4, 4])

    *Source:* Huang et al., 2016, https://arxiv.org/abs/1610.08904.
    """

    def __init__(self, embedding_size: int, **kwargs: Any) -> None:
        check_count(self, "embedding_size", embedding_size)
        super().__init__(**kwargs)
        self.embedding_size = embedding_size
        self.linear = nn.Linear(embedding_size, embedding_size, bias=False)
        nn.init.eye_(self.linear.weight)

    @property
    def metric(self) -> MahalanobisDistance:
        """The distance itself."""
        return self

    def _mapped(self, embeddings: Tensor) -> Tensor:
        return embeddings @ self.linear.weight.to(embeddings.dtype).T

    def compute_mat(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        """Distances ``[B, R]`` of normalized rows, in float32 or float64."""
        with autocast_off(query_emb.device):
            x, y = pair_to_full_precision(query_emb, ref_emb)
            references = None if y is None or y is x else self._mapped(y)
            return euclidean_distances(self._mapped(x), references, normalized=False)

    def pairwise_distance(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        """Distances of row with row, ``[N]``."""
        return super().pairwise_distance(self._mapped(query_emb), self._mapped(ref_emb))  # type: ignore[no-any-return]
