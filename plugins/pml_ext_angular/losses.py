"""The four losses of Wang et al. (2017): angular over a batch, angular over triplets, N-pair, and a weighted sum."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from pml_ext.plugin import (
    BaseMetricLossFunction,
    BaseReducer,
    ClassMembers,
    FullPrecisionForward,
    GramCosineSimilarity,
    GramDotProductSimilarity,
    SumOverDivisorReducer,
    check_flag,
    check_number,
    class_members,
    matrix_of,
    pair_masks,
)

from . import functional as F


class _Batch(NamedTuple):
    """Dot products of a batch and its ordered (anchor, positive) pairs."""

    similarity: Tensor  # x_a . x_n, [B, R]
    partner_similarity: Tensor  # x_p . x_n, [R, R]; the same tensor without references
    negatives: Tensor  # [B, R]
    anchors: Tensor  # [P]
    partners: Tensor  # [P]
    positive_similarity: Tensor  # [P]
    classes: ClassMembers | None  # where the negatives follow from the labels of the batch


class _DotProductLoss(FullPrecisionForward, BaseMetricLossFunction):  # type: ignore[misc]
    """What the four share: dot products of normalised or raw embeddings, their pairs, and angles for the records."""

    capabilities = frozenset({"labels", "indices_tuple", "references"})

    def __init__(self, normalize_embeddings: bool = True, **kwargs: Any) -> None:
        check_flag(self, "normalize_embeddings", normalize_embeddings)
        if "distance" in kwargs:
            raise ValueError(
                f"{type(self).__name__} is written in dot products and takes no distance; normalize_embeddings=False "
                "leaves the embeddings as they are"
            )
        distance = GramCosineSimilarity() if normalize_embeddings else GramDotProductSimilarity()
        super().__init__(distance=distance, **kwargs)
        self.normalize_embeddings = normalize_embeddings

    def _batch(self, embeddings: Tensor, labels: Tensor | None, indices_tuple: tuple[Tensor, ...] | None,
               ref_emb: Tensor, ref_labels: Tensor | None) -> _Batch:  # fmt: skip
        similarity, references = matrix_of(self.distance, embeddings, ref_emb)
        positives, negatives = pair_masks(similarity, labels, indices_tuple, ref_labels, references=references)
        anchors, partners = torch.where(positives)
        classes = class_members(labels) if not references and indices_tuple is None and labels is not None else None
        partner_similarity = self.distance(ref_emb) if references else similarity
        return _Batch(
            similarity, partner_similarity, negatives, anchors, partners, similarity[anchors, partners], classes
        )

    def _squared_lengths(self, embeddings: Tensor, ref_emb: Tensor) -> tuple[Tensor, Tensor]:
        batch = self.distance.maybe_normalize(embeddings).square().sum(1)
        return batch, batch if ref_emb is embeddings else self.distance.maybe_normalize(ref_emb).square().sum(1)

    @torch.no_grad()
    def _record_angles(self, batch: _Batch, embeddings: Tensor, ref_emb: Tensor, alpha: float) -> None:
        """Mean angle at the negative, and the share of triplets over alpha, of all triplets of the batch."""
        if not self.collect_stats:
            return
        squared = self._squared_lengths(embeddings, ref_emb)
        total = over = count = batch.similarity.new_zeros(())
        for tile in F.tiles_of(len(batch.anchors), batch.similarity.shape[1]):
            pairs = batch.anchors[tile], batch.partners[tile]
            sides = F.sides_of_pairs(pairs, (batch.similarity, batch.partner_similarity), squared)
            angles, mask = F.angle_at_negative(*sides), batch.negatives[pairs[0]]
            total = total + (angles * mask).sum()
            over = over + ((angles > alpha) & mask).sum()
            count = count + mask.sum()
        self.average_angle, self.over_alpha = total / count.clamp(min=1), over / count.clamp(min=1)

    def _per_pair(self, losses: Tensor, batch: _Batch) -> dict[str, dict[str, Any]]:
        if len(losses) == 0:
            return self.zero_losses()  # type: ignore[no-any-return]
        indices = (batch.anchors, batch.partners)
        return {"loss": {"losses": losses, "indices": indices, "reduction_type": "pos_pair", "divisor": len(losses)}}


class _AngularLoss(_DotProductLoss):
    """What the three with an angle share."""

    def __init__(self, alpha: float = 45.0, normalize_embeddings: bool = True, **kwargs: Any) -> None:
        check_number(self, "alpha", alpha, above=0, below=90)
        super().__init__(normalize_embeddings, **kwargs)
        self.alpha = alpha
        self.add_to_recordable_attributes(name="alpha", is_stat=False)
        self.add_to_recordable_attributes(list_of_names=["average_angle", "over_alpha"], is_stat=True)

    def _angular_terms(self, batch: _Batch) -> Tensor:
        """Eq. (8) of every pair: by class where exponentials can be multiplied, else from gathered rows."""
        if (
            batch.classes is None
            or not self.normalize_embeddings
            or 4 * F.squared_tangent(self.alpha) > F.PRODUCT_SLOPE
        ):
            return F.angular_terms(*batch[:6], alpha=self.alpha)
        return F.angular_terms_by_class(
            batch.similarity, batch.negatives, batch.classes, batch.anchors, batch.partners, batch.positive_similarity,
            alpha=self.alpha,
        )  # fmt: skip

    def extra_repr(self) -> str:
        """The settings."""
        return f"alpha={self.alpha!r}, normalize_embeddings={self.normalize_embeddings!r}"


class AngularLoss(_AngularLoss):
    r"""Angular loss over a batch, Eq. (8): the angle at a negative, as a log-sum-exp over all negatives of a pair.

    .. math::
        \operatorname{mean}_{(a, p)} \log\Big[1 + \sum_{n \in N_a} \exp f_{a,p,n}\Big], \qquad
        f_{a,p,n} = 4 \tan^2\!\alpha \, (x_a + x_p)^T x_n - 2 (1 + \tan^2\!\alpha) \, x_a^T x_p \quad (8)

    The reducer gets one value an ordered (anchor, positive) pair (``"pos_pair"``); zeros are counted. Negatives of a
    pair are all of other classes, or those that an ``indices_tuple`` gives its anchor. With ``collect_stats`` the
    average angle at the negative, in degrees (``average_angle``), and the share of triplets over alpha
    (``over_alpha``) are recorded.

    *Deviations:* none from the text. PML's ``AngularLoss`` equals this on normalised input; on other input it
    multiplies normalised anchors with raw negatives, and it ignores mined negatives.

    *Cost:* one product of ``B x D x R``, and ``B x B x M`` for classes of M; where exponentials cannot be multiplied
    (mined pairs, references, raw embeddings, alpha above 63), ``P x R`` for P pairs, in tiles. Memory ``B x R``.

    *Pair with:* PML's ``MPerClassSampler(m=2)``, the batches of Fig. 4b.

    Args:
        alpha: the upper bound of the angle at the negative, in degrees, above 0 and below 90. The paper: 45 for cars,
            36 for products; 36 to 55 work.
        normalize_embeddings: False leaves all sides as they are (Sec. 4.4 trains so); else all are normalised.
        kwargs: those of PML's losses but ``distance``: ``reducer``, ``embedding_regularizer``, ``collect_stats``, ...

    Raises:
        TypeError: a setting of a wrong type.
        ValueError: alpha outside its range, or a distance.

    Example:
        >>> loss = AngularLoss(alpha=36)
        >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).shape
        torch.Size([])

    *Source:* Wang et al., Deep Metric Learning with Angular Loss, 2017, https://arxiv.org/abs/1708.01682.
    """

    def compute_loss(self, embeddings: Tensor, labels: Tensor | None, indices_tuple: tuple[Tensor, ...] | None,
                     ref_emb: Tensor, ref_labels: Tensor | None) -> dict[str, dict[str, Any]]:  # fmt: skip
        """One value a pair, Eq. (8)."""
        batch = self._batch(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        self._record_angles(batch, embeddings, ref_emb, self.alpha)
        return self._per_pair(self._angular_terms(batch), batch)


class NPairLoss(_DotProductLoss):
    r"""The N-pair loss as Wang et al. print it, Eq. (10).

    .. math:: \operatorname{mean}_{(a, p)} \log\Big[1 + \sum_{n \in N_a} \exp(x_a^T x_n - x_a^T x_p)\Big] \quad (10)

    The reducer gets one value an ordered (anchor, positive) pair (``"pos_pair"``); zeros are counted. This is not PML's
    ``NPairsLoss``, Sohn's form with one positive a class. On normalised embeddings, whose products differ by 2 at most,
    it is weak; train with ``normalize_embeddings=False`` and ``embedding_regularizer=LpRegularizer(power=2)``, of
    weight 0.02.

    *Cost:* one product of ``B x D x R``; memory ``B x R``.

    *Pair with:* PML's ``MPerClassSampler(m=2)``.

    Args:
        normalize_embeddings: False leaves all sides as they are; else all are normalised.
        kwargs: those of PML's losses but ``distance``: ``reducer``, ``embedding_regularizer``, ``collect_stats``, ...

    Raises:
        TypeError: a setting of a wrong type.
        ValueError: a distance.

    *Source:* Wang et al., Deep Metric Learning with Angular Loss, 2017, https://arxiv.org/abs/1708.01682.
    """

    def compute_loss(self, embeddings: Tensor, labels: Tensor | None, indices_tuple: tuple[Tensor, ...] | None,
                     ref_emb: Tensor, ref_labels: Tensor | None) -> dict[str, dict[str, Any]]:  # fmt: skip
        """One value a pair, Eq. (10)."""
        batch = self._batch(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        return self._per_pair(_n_pair_terms(batch), batch)

    def extra_repr(self) -> str:
        """The settings."""
        return f"normalize_embeddings={self.normalize_embeddings!r}"


def _n_pair_terms(batch: _Batch) -> Tensor:
    log_sums = F.log_sum_exp(batch.similarity, batch.negatives)
    return F.n_pair_terms(log_sums, batch.anchors, batch.positive_similarity)


class NPairAngularLoss(_AngularLoss):
    r"""N-pair and angular loss together, Eq. (9): distances and angles.

    .. math:: \mathcal{L} = \mathcal{L}_{npair} + \lambda \, \mathcal{L}_{ang} \quad (9)

    with :class:`NPairLoss` (Eq. 10) and :class:`AngularLoss` (Eq. 8), summed pair by pair, so that the reducer gets one
    value an ordered (anchor, positive) pair (``"pos_pair"``). With ``collect_stats`` the means of both terms, the
    angular one without its weight (``n_pair_loss``, ``angular_loss``), are recorded beside the angles.

    *Cost:* that of :class:`AngularLoss`; the dot products are shared.

    *Pair with:* PML's ``MPerClassSampler(m=2)``.

    Args:
        alpha: the upper bound of the angle at the negative, in degrees, above 0 and below 90; 45.
        angular_weight: :math:`\lambda`, 0 or more; 2 in the paper.
        normalize_embeddings: False leaves all sides as they are; else all are normalised.
        kwargs: those of PML's losses but ``distance``: ``reducer``, ``embedding_regularizer``, ``collect_stats``, ...

    Raises:
        TypeError: a setting of a wrong type.
        ValueError: a setting outside its range, or a distance.

    *Source:* Wang et al., Deep Metric Learning with Angular Loss, 2017, https://arxiv.org/abs/1708.01682.
    """

    def __init__(
        self, alpha: float = 45.0, angular_weight: float = 2.0, normalize_embeddings: bool = True, **kwargs: Any
    ) -> None:
        check_number(self, "angular_weight", angular_weight, least=0)
        super().__init__(alpha, normalize_embeddings, **kwargs)
        self.angular_weight = angular_weight
        self.add_to_recordable_attributes(name="angular_weight", is_stat=False)
        self.add_to_recordable_attributes(list_of_names=["n_pair_loss", "angular_loss"], is_stat=True)

    def compute_loss(self, embeddings: Tensor, labels: Tensor | None, indices_tuple: tuple[Tensor, ...] | None,
                     ref_emb: Tensor, ref_labels: Tensor | None) -> dict[str, dict[str, Any]]:  # fmt: skip
        """One value a pair, Eq. (9)."""
        batch = self._batch(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        n_pair, angular = _n_pair_terms(batch), self._angular_terms(batch)
        self._record_angles(batch, embeddings, ref_emb, self.alpha)
        if self.collect_stats and len(n_pair):
            self.n_pair_loss, self.angular_loss = n_pair.detach().mean(), angular.detach().mean()
        return self._per_pair(n_pair + self.angular_weight * angular, batch)

    def extra_repr(self) -> str:
        """The settings."""
        return f"{super().extra_repr()}, angular_weight={self.angular_weight!r}"


class AngularTripletLoss(_AngularLoss):
    r"""Angular hinge over triplets, Eq. (6).

    .. math::
        \operatorname{mean}_{(a, p, n)} \big[\,\|x_a - x_p\|^2 - 4 \tan^2\!\alpha \, \|x_n - x_c\|^2\,\big]_+,
        \qquad x_c = (x_a + x_p) / 2 \quad (6)

    The triplets of an ``indices_tuple`` of three are taken as listed, and the reducer gets one value each
    (``"triplet"``). Otherwise all triplets of the batch (or of the tuple's pairs) are, without listing them: the
    reducer gets the sum over each pair's negatives (``"pos_pair"``) with ``divisor``, the number of triplets, which the
    default reducer divides by: the mean with zeros counted. Another reducer reduces these sums. With ``collect_stats``
    the average angle at the negative (``average_angle``) and the share of triplets over alpha (``over_alpha``) are
    recorded.

    *Cost:* one product of ``B x D x R`` and ``P x R`` for P pairs, in tiles; memory ``B x R``.

    Args:
        alpha: the upper bound of the angle at the negative, in degrees, above 0 and below 90; 45.
        normalize_embeddings: False leaves all sides as they are; else all are normalised.
        kwargs: those of PML's losses but ``distance``: ``reducer``, ``embedding_regularizer``, ``collect_stats``, ...

    Raises:
        TypeError: a setting of a wrong type.
        ValueError: alpha outside its range, or a distance.

    *Source:* Wang et al., Deep Metric Learning with Angular Loss, 2017, https://arxiv.org/abs/1708.01682.
    """

    def compute_loss(self, embeddings: Tensor, labels: Tensor | None, indices_tuple: tuple[Tensor, ...] | None,
                     ref_emb: Tensor, ref_labels: Tensor | None) -> dict[str, dict[str, Any]]:  # fmt: skip
        """One value a listed triplet, or a sum a pair, Eq. (6)."""
        batch = self._batch(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        self._record_angles(batch, embeddings, ref_emb, self.alpha)
        squared = self._squared_lengths(embeddings, ref_emb)
        if indices_tuple is not None and len(indices_tuple) == 3:
            return self._of_listed(batch, squared, indices_tuple)
        if len(batch.anchors) == 0:
            return self.zero_losses()  # type: ignore[no-any-return]
        sums = F.hinge_sums(
            (batch.anchors, batch.partners), (batch.similarity, batch.partner_similarity), squared, batch.negatives,
            alpha=self.alpha,
        )  # fmt: skip
        found = self._per_pair(sums, batch)
        found["loss"]["divisor"] = batch.negatives.sum(1)[batch.anchors].sum()
        return found

    def _of_listed(self, batch: _Batch, squared: tuple[Tensor, Tensor], triplets: tuple[Tensor, ...]) -> dict[str, Any]:
        a, p, n = (index.to(batch.similarity.device) for index in triplets)
        if len(a) == 0:
            return self.zero_losses()  # type: ignore[no-any-return]
        sides = F.squared_sides(squared[0][a], squared[1][p], squared[1][n], batch.similarity[a, p],
                                batch.similarity[a, n], batch.partner_similarity[p, n])  # fmt: skip
        losses = F.hinge(*sides, alpha=self.alpha)
        return {"loss": {"losses": losses, "indices": (a, p, n), "reduction_type": "triplet", "divisor": len(losses)}}

    def get_default_reducer(self) -> BaseReducer:
        """The sum over the number of triplets."""
        return SumOverDivisorReducer()
