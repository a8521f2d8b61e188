"""The losses of Wang et al. (2017): angular, angular over triplets, N-pair, and a sum."""

from typing import ClassVar, Unpack

import torch
from torch import Tensor

from pml_ext.plugin import (
    BaseReducer,
    Compilation,
    GramCosineSimilarity,
    GramDotProductSimilarity,
    PairLoss,
    PairLossSettings,
    Pairs,
    SumOverDivisorReducer,
    Terms,
    check_flag,
    check_number,
    class_members,
    log_one_plus_exp,
    per_anchor,
    per_pair,
    per_triplet,
)

from . import functional as F

_LARGEST_GROUP = 1024


class _DotProductLoss(PairLoss):
    """Base of the four losses: dot products of normalized or raw embeddings.

    Args:
        normalize_embeddings: False uses raw embeddings, as in Sec. 4.4.
        kwargs: as in PML's losses, except ``distance``.
    """

    tiles = "classes"
    float_masks_up_to = 1 << 15

    def __init__(self, normalize_embeddings: bool = True, **kwargs: Unpack[PairLossSettings]) -> None:
        check_flag(self, "normalize_embeddings", normalize_embeddings)
        if "distance" in kwargs:
            raise ValueError(
                f"{type(self).__name__} is written in dot products and takes no distance; normalize_embeddings=False "
                "uses raw embeddings"
            )
        if normalize_embeddings:
            kwargs["distance"] = GramCosineSimilarity()
        else:
            kwargs["distance"] = GramDotProductSimilarity()
        super().__init__(**kwargs)
        self.normalize_embeddings = normalize_embeddings

    def compilation(self, rows: int, by_labels: bool) -> Compilation:
        return Compilation.ALL_ENTRIES

    def _needs_the_sum_alone(self, pairs: Pairs) -> bool:
        """Whether the batch is small, and only the sum of its pairs is needed."""
        small = pairs.masks.is_floating_point() and self.normalize_embeddings
        return small and not self.collect_stats and self.weighs_equally()

    def _summed(self, pairs: Pairs, t: float, weights: tuple[float, float]) -> Terms:
        assert pairs.labels is not None  # masks are floats
        totals = F.sums_of_cosines(pairs.matrix, pairs.masks, pairs.labels, t, weights)
        count = pairs.positives.sum()
        terms = per_anchor(totals, count)
        terms["loss"]["count"] = count
        return terms

    def _n_pair_terms(self, pairs: Pairs) -> Tensor:
        return log_one_plus_exp(F.log_sums_of_pairs(pairs.matrix, pairs.negatives, *pairs.listed))


class _AngularLoss(_DotProductLoss):
    """Base of the three losses with an upper bound alpha.

    Args:
        alpha: the upper bound of the angle at the negative, in degrees, above 0 and below 90.
    """

    statistic_names: ClassVar[tuple[str, ...]] = ("average_angle", "over_alpha")

    def __init__(
        self, alpha: float = 45.0, normalize_embeddings: bool = True, **kwargs: Unpack[PairLossSettings]
    ) -> None:
        check_number(self, "alpha", alpha, above=0, below=90)
        super().__init__(normalize_embeddings, **kwargs)
        self.alpha = alpha

    def _multiplies(self) -> bool:
        return self.normalize_embeddings and 4 * F.squared_tangent(self.alpha) <= F.PRODUCT_SLOPE

    def compilation(self, rows: int, by_labels: bool) -> Compilation:
        if by_labels and self._multiplies() and rows <= _LARGEST_GROUP:
            return Compilation.ALL_ENTRIES
        return Compilation.EAGER

    def _angular_terms(self, pairs: Pairs) -> Tensor:
        """Eq. (8) of every pair: by products where these stay finite, else from gathered rows."""
        if pairs.labels is not None and self._multiplies():
            return self._terms_of_products(pairs, pairs.labels)
        t = F.squared_tangent(self.alpha)
        return log_one_plus_exp(F.log_sums_of_rows(pairs.matrix, pairs.between, pairs.negatives, *pairs.listed, t))

    def _n_pair_and_angular_terms(self, pairs: Pairs) -> tuple[Tensor, Tensor]:
        if pairs.labels is not None and self._multiplies():
            n_pair, angular = self._terms_of_products(pairs, pairs.labels, with_n_pair=True)
            return n_pair, angular
        return self._n_pair_terms(pairs), self._angular_terms(pairs)

    def _terms_of_products(self, pairs: Pairs, labels: Tensor, with_n_pair: bool = False) -> Tensor:
        log_sums = F.log_sums_of_products(
            pairs.matrix,
            pairs.negatives,
            class_members(labels),
            *pairs.listed,
            F.squared_tangent(self.alpha),
            first=pairs.first,
            with_n_pair=with_n_pair,
        )
        return log_one_plus_exp(log_sums)

    def _record_angles(self, pairs: Pairs) -> None:
        if not self.collect_stats:
            return
        with torch.no_grad():
            squared_lengths = (pairs.points.square().sum(1), pairs.columns.square().sum(1))
            all_anchors, all_partners = pairs.listed
            total = pairs.matrix.new_zeros(())
            over = pairs.matrix.new_zeros(())
            count = pairs.matrix.new_zeros(())
            size = F.pairs_at_once(pairs.matrix)
            for anchors, partners in zip(torch.split(all_anchors, size), torch.split(all_partners, size), strict=True):
                squared_ap, squared_nc = F.sides_of_pairs(
                    (anchors, partners), pairs.matrix, pairs.between, squared_lengths
                )
                angles = F.angle_at_negative(squared_ap, squared_nc)
                mask = pairs.negatives[anchors]
                total = total + (angles * mask).sum()
                over = over + ((angles > self.alpha) * mask).sum()
                count = count + mask.sum()
        self.record(average_angle=(total, count), over_alpha=(over, count))


class AngularLoss(_AngularLoss):
    r"""Angular loss over a batch, Eq. (8): the angle at a negative.

    .. math::
        \operatorname{mean}_{(a, p)} \log\Big[1 + \sum_{n \in N_a} \exp f_{a,p,n}\Big], \qquad
        f_{a,p,n} = 4 \tan^2\!\alpha \, (x_a + x_p)^T x_n - 2 (1 + \tan^2\!\alpha) \, x_a^T x_p \quad (8)

    The reducer gets one value per positive pair (``"pos_pair"``), zeros included. ``collect_stats`` records
    ``average_angle``, in degrees, and ``over_alpha``, the share of triplets above alpha.

    PML's ``AngularLoss`` agrees on normalized input. Otherwise it mixes normalized anchors with raw negatives. It
    ignores mined negatives.

    *Cost:* one product of ``B x D x R``, and ``B x B x M`` for classes of M; memory ``B x R``. For mined pairs,
    references, raw embeddings, and alpha above 63, ``P x R`` for P pairs, in tiles.

    *Pair with:* PML's ``MPerClassSampler(m=2)``, as in Fig. 4b.

    Args:
        alpha: the upper bound of the angle at the negative, in degrees, above 0 and below 90. The paper uses 45 for
            cars and 36 for products.
        normalize_embeddings: False uses raw embeddings, as in Sec. 4.4.
        kwargs: as in PML's losses, except ``distance``.

    Raises:
        ValueError: alpha is outside its range, or a ``distance`` is passed.

    Example:
        >>> loss = AngularLoss(alpha=36)
        >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).shape
        torch.Size([])

    *Source:* Wang et al., Deep Metric Learning with Angular Loss, 2017, https://arxiv.org/abs/1708.01682.
    """

    def equation(self, pairs: Pairs) -> Terms:
        """One value per pair, Eq. (8)."""
        if self._multiplies() and self._needs_the_sum_alone(pairs):
            return self._summed(pairs, F.squared_tangent(self.alpha), (0, 1))
        self._record_angles(pairs)
        return per_pair(self._angular_terms(pairs), pairs)


class NPairLoss(_DotProductLoss):
    r"""The N-pair loss in the form of Wang et al., Eq. (10).

    .. math:: \operatorname{mean}_{(a, p)} \log\Big[1 + \sum_{n \in N_a} \exp(x_a^T x_n - x_a^T x_p)\Big] \quad (10)

    The reducer gets one value per positive pair (``"pos_pair"``), zeros included. PML's ``NPairsLoss`` is Sohn's form,
    with one positive per class. The loss is weak on normalized embeddings. Train with ``normalize_embeddings=False``
    and ``embedding_regularizer=LpRegularizer(power=2)`` with weight 0.02.

    *Cost:* one product of ``B x D x R``; memory ``B x R``.

    Settings, errors, sampler and source: see :class:`AngularLoss`, without alpha.
    """

    def equation(self, pairs: Pairs) -> Terms:
        """One value per pair, Eq. (10)."""
        if self._needs_the_sum_alone(pairs):
            return self._summed(pairs, 0, (1, 0))
        return per_pair(self._n_pair_terms(pairs), pairs)


class NPairAngularLoss(_AngularLoss):
    r"""Weighted sum of the N-pair and the angular loss, Eq. (9).

    .. math:: \mathcal{L} = \mathcal{L}_{npair} + \lambda \, \mathcal{L}_{ang} \quad (9)

    with :class:`NPairLoss` and :class:`AngularLoss`, summed pair by pair. ``collect_stats`` also records
    ``n_pair_loss`` and ``angular_loss``, without the weight. *Cost:* that of :class:`AngularLoss`.

    *Pair with:* PML's ``MPerClassSampler(m=2)``.

    Args:
        alpha: as in :class:`AngularLoss`, like the other settings, errors and source.
        angular_weight: :math:`\lambda`, 0 or more; 2 in the paper.
    """

    statistic_names: ClassVar[tuple[str, ...]] = (*_AngularLoss.statistic_names, "n_pair_loss", "angular_loss")

    def __init__(
        self,
        alpha: float = 45.0,
        angular_weight: float = 2.0,
        normalize_embeddings: bool = True,
        **kwargs: Unpack[PairLossSettings],
    ) -> None:
        check_number(self, "angular_weight", angular_weight, least=0)
        super().__init__(alpha, normalize_embeddings, **kwargs)
        self.angular_weight = angular_weight

    def equation(self, pairs: Pairs) -> Terms:
        """One value per pair, Eq. (9)."""
        if self._multiplies() and self._needs_the_sum_alone(pairs):
            return self._summed(pairs, F.squared_tangent(self.alpha), (1, self.angular_weight))
        n_pair, angular = self._n_pair_and_angular_terms(pairs)
        self._record_angles(pairs)
        if len(n_pair):
            self.record(n_pair_loss=n_pair, angular_loss=angular)
        return per_pair(torch.add(n_pair, angular, alpha=self.angular_weight), pairs)


class AngularTripletLoss(_AngularLoss):
    r"""Angular hinge over triplets, Eq. (6).

    .. math::
        \operatorname{mean}_{(a, p, n)} \big[\,\|x_a - x_p\|^2 - 4 \tan^2\!\alpha \, \|x_n - x_c\|^2\,\big]_+,
        \qquad x_c = (x_a + x_p) / 2 \quad (6)

    Listed triplets give the reducer one value each. Otherwise it gets each pair's sum over its negatives, and the
    number of triplets as ``divisor``, by which the default reducer divides; PML's reducers of single values, such as
    ``AvgNonZeroReducer``, then raise an error. ``collect_stats`` records ``average_angle`` and ``over_alpha``.

    *Cost:* one product of ``B x D x R`` and ``P x R`` for P pairs, in tiles; memory ``B x R``.

    Settings, errors and source: see :class:`AngularLoss`.
    """

    sums_triplets = True

    def compilation(self, rows: int, by_labels: bool) -> Compilation:
        """``EAGER``."""
        return Compilation.EAGER

    def equation(self, pairs: Pairs) -> Terms:
        """One value per listed triplet, or a sum per pair, Eq. (6)."""
        self._record_angles(pairs)
        squared_anchors = pairs.points.square().sum(1)
        squared_columns = pairs.columns.square().sum(1)
        if pairs.triplets is not None:
            a, p, n = pairs.triplets
            between, rows = pairs.between(p)
            squared_ap, squared_nc = F.squared_sides(
                squared_anchors[a],
                squared_columns[p],
                squared_columns[n],
                ap=pairs.matrix[a, p],
                an=pairs.matrix[a, n],
                pn=between[rows, n],
            )
            return per_triplet(F.hinge(squared_ap, squared_nc, alpha=self.alpha), pairs.triplets)
        sums = F.hinge_sums(
            pairs.listed,
            pairs.matrix,
            pairs.between,
            (squared_anchors, squared_columns),
            pairs.negatives,
            alpha=self.alpha,
        )
        anchors, _ = pairs.listed
        num_triplets = pairs.negatives.sum(1)[anchors].sum()
        return per_pair(sums, pairs, divisor=num_triplets)

    def get_default_reducer(self) -> BaseReducer:
        """The reducer that divides the sum by the number of triplets."""
        return SumOverDivisorReducer()
