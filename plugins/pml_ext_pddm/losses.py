"""The PDDM loss: hinges on the learned scores and on the embeddings."""

from typing import Any, Unpack

import torch
from torch import Tensor, nn

from pml_ext.plugin import (
    BaseMetricLossFunction,
    BaseReducer,
    BaseRegularizer,
    FullPrecisionForward,
    ModuleSettings,
    SumOverDivisorReducer,
    call_loss,
    check_choice,
    check_count,
    check_flag,
    check_number,
    pair_masks,
    reduced,
    run_eagerly,
)

from .distances import PDDMDistance
from .functional import (
    POINTWISE,
    embedding_hinge,
    hard_quadruplets,
    min_max_pairs,
    min_max_scale,
    score_matrix,
    scores,
    scores_of_pairs,
    side,
)

Triplets = tuple[Tensor, Tensor, Tensor]


class _Settings(ModuleSettings, total=False):
    reducer: BaseReducer | None
    embedding_regularizer: BaseRegularizer | None
    embedding_reg_weight: float


class PDDMLoss(FullPrecisionForward, BaseMetricLossFunction):  # type: ignore[misc]
    r"""Trains a learned similarity and the embedding on hard quadruplets, Eq. (3), (4).

    .. math::
        E_m + \lambda E_e, \quad
        E_m = \max(0, \alpha + S_{ik} - S_{ij}) + \max(0, \alpha + S_{jl} - S_{ij}), \\
        E_e = \max(0, \beta + D_{ij} - D_{ik}) + \max(0, \beta + D_{ij} - D_{jl})

    S is the learned similarity, min-max scaled to [0, 1] over the batch. D is the Euclidean distance of normalized
    embeddings. (i, j) is the most dissimilar positive pair under S; k and l are the hardest negatives of i and j. The
    sum is divided by the number of quadruplets; without any, it is 0. Listed triplets give one hinge each, divided by
    half their number; listed pairs restrict the mining.

    Use at least 4 images per class (Sec. 3.3). One quadruplet per batch does not train a network from scratch: first
    train with another loss, then use a large ``num_quadruplets`` and smaller margins.

    ``collect_stats`` records ``score_loss``, :math:`E_m`, and ``feature_loss``, :math:`E_e`.

    *Cost:* all scores of the batch once; gradients only of the quadruplets and the two extreme scores.

    *Source:* Huang et al., Local Similarity-Aware Deep Feature Embedding, NeurIPS 2016.

    Args:
        distance: a :class:`pml_ext.PDDMDistance`; its parameters become parameters of the loss.
        score_margin: :math:`\alpha`, 0 or more, in units of S; defaults are the paper's.
        embedding_margin: :math:`\beta`, 0 or more, in units of D (0 to 2, or 0 to 4 if ``squared``).
        embedding_weight: :math:`\lambda`.
        num_quadruplets: number of quadruplets.
        per_class: whether ``num_quadruplets`` is per class rather than per batch.
        squared: whether D is the squared distance; the paper prints a norm and uses its square.
        normalize_scores: whether the scores are min-max scaled.
        detach_scaling: whether no gradient flows through the minimum and maximum score.
        detach_embeddings: whether :math:`E_m` gives the embeddings no gradient.
        pointwise: replaces :math:`E_m` by an unscaled loss over all pairs (Sec. 3.1): ``"logistic"``, Eq. (1), or
            ``"fisher"``, minus the Fisher criterion.
        embedding_loss: a PML loss of the triplets instead of :math:`E_e`, such as ``TripletMarginLoss`` ("PDDM +
            Triplet" of Table 1); ``embedding_margin`` and ``squared`` then have no effect.
        kwargs: as in PML's losses; only the default ``reducer`` divides by the number of quadruplets.

    Raises:
        ValueError: in a call, references or embeddings of another size.

    Example:
        >>> loss = PDDMLoss(PDDMDistance(embedding_size=8), per_class=True)
        >>> loss(torch.randn(8, 8), torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])).shape
        torch.Size([])

    *Source:* Huang et al., 2016, https://arxiv.org/abs/1610.08904.
    """

    capabilities = frozenset({"labels", "indices_tuple"})

    @property
    def expected_failed_checks(self) -> dict[str, str]:
        """The conformance checks that fail because of the score's bias and dropout."""
        bias = "the hinge takes differences of scores, in which the bias cancels"
        return {"check_parameters_get_gradients": bias, **self.distance.expected_failed_checks}

    def __init__(
        self,
        distance: PDDMDistance,
        score_margin: float = 0.5,
        embedding_margin: float = 1.0,
        embedding_weight: float = 0.5,
        num_quadruplets: int = 1,
        per_class: bool = False,
        squared: bool = False,
        normalize_scores: bool = True,
        detach_scaling: bool = False,
        detach_embeddings: bool = False,
        embedding_loss: nn.Module | None = None,
        pointwise: str | None = None,
        **kwargs: Unpack[_Settings],
    ) -> None:
        if not isinstance(distance, PDDMDistance):
            raise TypeError(
                f"distance of PDDMLoss must be a PDDMDistance, for example PDDMDistance(64), not {distance!r}"
            )
        check_number(self, "score_margin", score_margin, least=0)
        check_number(self, "embedding_margin", embedding_margin, least=0)
        check_number(self, "embedding_weight", embedding_weight)
        check_count(self, "num_quadruplets", num_quadruplets)
        flags = {
            "per_class": per_class,
            "squared": squared,
            "normalize_scores": normalize_scores,
            "detach_scaling": detach_scaling,
            "detach_embeddings": detach_embeddings,
        }
        for name, value in flags.items():
            check_flag(self, name, value)
        if embedding_loss is not None and not isinstance(embedding_loss, nn.Module):
            raise TypeError(f"embedding_loss of PDDMLoss must be a loss, not {embedding_loss!r}")
        if pointwise is not None:
            check_choice(self, "pointwise", pointwise, POINTWISE)
        super().__init__(distance=distance, **kwargs)
        self.pointwise = pointwise
        self.score_margin = score_margin
        self.embedding_margin = embedding_margin
        self.embedding_weight = embedding_weight
        self.num_quadruplets = num_quadruplets
        self.per_class = per_class
        self.squared = squared
        self.normalize_scores = normalize_scores
        self.detach_scaling = detach_scaling
        self.detach_embeddings = detach_embeddings
        self.embedding_loss = embedding_loss
        names = ["score_margin", "embedding_margin", "embedding_weight", "num_quadruplets"]
        self.add_to_recordable_attributes(list_of_names=names, is_stat=False)
        self.add_to_recordable_attributes(list_of_names=["score_loss", "feature_loss"], is_stat=True)

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Any:
        """The reduced loss; references raise ValueError."""
        if ref_emb is not None or ref_labels is not None:
            raise ValueError("PDDMLoss uses positives as anchors too, so it takes no references")
        # data-dependent shapes: run outside of the compiled graph
        return run_eagerly(super().forward, embeddings, labels, indices_tuple)

    def compute_loss(
        self,
        embeddings: Tensor,
        labels: Tensor | None,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor | None,
        ref_labels: Tensor | None,
    ) -> dict[str, dict[str, Any]]:
        """The hinges of both terms, one value per triplet."""
        x = self.distance.normalized(embeddings)
        head = self.distance.head(x.dtype)
        points = x.detach() if self.detach_embeddings else x
        with torch.no_grad():
            matrix = score_matrix(head, x, None, self.distance.tile(x))
        (a, p, n), quadruplets = self._triplets(matrix, labels, indices_tuple)
        hard: dict[str, Any] = {"indices": (a, p, n), "reduction_type": "triplet", "divisor": quadruplets}
        if self.pointwise is not None:
            positives, negatives = pair_masks(matrix, labels, indices_tuple)
            pair_scores = scores_of_pairs(head, points, positives, negatives, self.distance.tile(x))
            value = POINTWISE[self.pointwise](*pair_scores)
            score = {"losses": value, "indices": None, "reduction_type": "already_reduced"}
            return _without_empty(
                {"score": score, "embedding": self._embedding_term(embeddings, labels, x, hard, value)}
            )
        rows, columns = min_max_pairs(matrix) if len(matrix) > 1 else (a[:0], a[:0])
        ends = side(head, points)
        s = scores(head, ends.at(torch.cat([a, a, rows])), ends.at(torch.cat([p, n, columns])))
        s_ap, s_an, extremes = torch.split(s, [len(a), len(a), len(rows)])
        if self.normalize_scores and len(rows):
            least, greatest = (extremes.detach() if self.detach_scaling else extremes).unbind()
            s_ap = min_max_scale(s_ap, least, greatest)
            s_an = min_max_scale(s_an, least, greatest)
        metric = (self.score_margin + s_an - s_ap).clamp(min=0)

        second = self._embedding_term(embeddings, labels, x, hard, metric.sum() / (quadruplets or 1))
        return _without_empty({"score": {"losses": metric, **hard}, "embedding": second})

    def _embedding_term(
        self, embeddings: Tensor, labels: Tensor | None, x: Tensor, hard: dict[str, Any], score: Tensor
    ) -> dict[str, Any]:
        a, p, n = hard["indices"]
        if self.embedding_loss is None:
            ends = x.index_select(0, a), x.index_select(0, p), x.index_select(0, n)
            hinges = embedding_hinge(*ends, self.embedding_margin, self.squared)
            second = {**hard, "losses": self.embedding_weight * hinges}
            value = hinges.sum() / (hard["divisor"] or 1)
        else:
            value = call_loss(self.embedding_loss, embeddings, labels, (a, p, n))
            second = {"losses": self.embedding_weight * value, "indices": None, "reduction_type": "already_reduced"}
        if self.collect_stats:
            self.score_loss = score.detach()
            self.feature_loss = value.detach()
        return second

    def _triplets(
        self, matrix: Tensor, labels: Tensor | None, indices_tuple: tuple[Tensor, ...] | None
    ) -> tuple[Triplets, float]:
        if indices_tuple is not None and len(indices_tuple) == 3:
            a, p, n = (index.to(matrix.device) for index in indices_tuple)
            return (a, p, n), len(a) / 2
        if self.per_class and labels is None:
            raise ValueError("PDDMLoss with per_class=True needs labels")
        positives, negatives = pair_masks(matrix, labels, indices_tuple)
        classes = labels if self.per_class else None
        return hard_quadruplets(matrix, positives, negatives, self.num_quadruplets, classes)

    def _sub_loss_names(self) -> list[str]:
        return ["score", "embedding"]

    def get_default_reducer(self) -> BaseReducer:
        """The reducer that divides the sum by the number of quadruplets."""
        return SumOverDivisorReducer()


def _without_empty(terms: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Replace terms without a triplet by 0, because PML's MeanReducer returns NaN."""
    for name, term in terms.items():
        if isinstance(term["losses"], Tensor) and term["losses"].ndim and not len(term["losses"]):
            terms[name] = reduced(term["losses"].sum())["loss"]
    return terms
