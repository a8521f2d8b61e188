"""PML's losses over pairs and triplets, with the same values in memory linear in the batch.

All accept ``tile_size``, the anchors per tile (automatic by default), and the keyword arguments of PML's losses.
*Cost:* three or four products of ``B x D x R`` in tiles. Memory is linear in B + R, and in the positive pairs if each
has a loss value.
"""

from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from ..distances import EuclideanDistance
from ..pairwise import (
    in_parts,
    log_one_plus_exp,
    log_one_plus_sums,
    log_sum_exp,
    masked_mean,
    masked_sum,
    with_log_weights,
)
from ..pml import BaseDistance, BaseReducer, MultipleReducers
from ..reducers import SumOfReducers, SumOverDivisorReducer, reduced_rows, reducer_of, row_sums, takes_row_sums
from ..settings import check_number
from .compilation import Compilation
from .pair_loss import LossInputs, PairLoss, PairLossSettings
from .pairs import Pairs, Terms, per_anchor, per_pair, per_triplet, reduced

_ENTRIES = 1 << 23  # entries of gathered rows held at a time


class _TiledLoss(PairLoss):
    compares = "either"
    tiles: ClassVar[str | None] = "rows"

    def _nearness(self, matrix: Tensor) -> Tensor:  # larger where two embeddings are nearer
        return matrix if self.distance.is_inverted else -matrix


class _SummedByRow(_TiledLoss):
    """Base of losses whose reducers need only the sum of each row."""

    reducer: BaseReducer
    _of_pairs: ClassVar[bool]  # whether pairs are summed, not triplets

    def set_reducer(self, reducer: BaseReducer | None) -> None:
        super().set_reducer(reducer)
        if reducer is None and type(self.reducer) is MultipleReducers:
            self.reducer = SumOfReducers(dict(self.reducer.reducers.items()), self.reducer.default_reducer)
        for name in self._sub_loss_names():
            reducer_of_term = reducer_of(self.reducer, name)
            if not takes_row_sums(reducer_of_term, self._of_pairs):
                name_of_loss = type(self).__name__
                listed = "pairs" if self._of_pairs else "triplets"
                more = " PerAnchorReducer," if self._of_pairs else ""
                raise ValueError(
                    f"{name_of_loss} lists no {listed} and takes a MeanReducer, SumReducer, "
                    f"AvgNonZeroReducer, ThresholdReducer,{more} or MultipleReducers of these, not a "
                    f"{type(reducer_of_term).__name__}; PML's {name_of_loss.removeprefix('Tiled')} lists them"
                )

    def finalize_terms(self, terms: Terms, inputs: LossInputs) -> Terms:
        """Reduce here if the reducer is PML's, which would mistake row sums for single values."""
        for name, info in terms.items():
            reducer = reducer_of(self.reducer, name)
            has_row_sums = info["reduction_type"] in ("element", "pos_pair")
            if has_row_sums and not isinstance(reducer, SumOverDivisorReducer):
                value = reduced_rows(reducer, info, inputs.embeddings, inputs.labels)
                terms[name] = reduced(value)["loss"]
        return terms

    def get_default_reducer(self) -> BaseReducer:
        return SumOverDivisorReducer()

    def get_default_distance(self) -> BaseDistance:
        return EuclideanDistance()


class TiledContrastiveLoss(_SummedByRow):
    r"""PML's ``ContrastiveLoss`` in memory linear in the batch.

    .. math::
        \operatorname{mean}_{(a, p)} \max(0, d_{ap} - m_p) + \operatorname{mean}_{(a, n)} \max(0, m_n - d_{an})

    As in PML, both means run over the pairs with a nonzero loss. PML's reducers that need no list of pairs also work. A
    pair counts as often as it is listed. A graded relation multiplies the loss of a positive pair by its weight.

    Args:
        pos_margin: distance up to which a positive pair has no loss; 0.
        neg_margin: distance from which a negative pair has no loss; 1. For a similarity, both margins are similarities
            with reversed signs.
        kwargs: see :mod:`pml_ext.losses.tiled`; ``distance`` is Euclidean, of normalized embeddings, by default.
    """

    graded = True
    counts_repeats = True
    _of_pairs = True

    def __init__(self, pos_margin: float = 0.0, neg_margin: float = 1.0, **kwargs: Unpack[PairLossSettings]) -> None:
        check_number(self, "pos_margin", pos_margin)
        check_number(self, "neg_margin", neg_margin)
        super().__init__(**kwargs)
        self.pos_margin = pos_margin
        self.neg_margin = neg_margin

    def equation(self, pairs: Pairs) -> Terms:
        """Two terms, each with one sum per anchor."""
        positive = torch.relu(self.distance.margin(pairs.matrix, self.pos_margin))
        negative = torch.relu(self.distance.margin(self.neg_margin, pairs.matrix))
        if pairs.weights is not None:
            positive = positive * torch.where(pairs.positives, pairs.weights, 1)
        pos_times = None
        neg_times = None
        if pairs.counts is not None:
            pos_times, neg_times = pairs.counts
        return {
            "pos_loss": self._term("pos_loss", positive, pairs.positives, pos_times),
            "neg_loss": self._term("neg_loss", negative, pairs.negatives, neg_times),
        }

    def _term(self, name: str, values: Tensor, mask: Tensor, times: Tensor | None) -> dict[str, Any]:
        sums, counts = row_sums(reducer_of(self.reducer, name), values, mask, times)
        return per_anchor(sums, divisor=counts.sum())["loss"]

    def _sub_loss_names(self) -> list[str]:
        return ["pos_loss", "neg_loss"]


class TiledMultiSimilarityLoss(_TiledLoss):
    r"""PML's ``MultiSimilarityLoss`` in memory linear in the batch.

    .. math::
        \operatorname{mean}_i \Big[ \frac{1}{\alpha} \log\Big(1 + \sum_{j \in P_i} e^{-\alpha (s_{ij} - \lambda)}\Big)
        + \frac{1}{\beta} \log\Big(1 + \sum_{j \in N_i} e^{\beta (s_{ij} - \lambda)}\Big) \Big]

    The reducer gets one value per anchor. A graded relation multiplies a positive pair's exponential by its weight.

    *Pair with:* :class:`pml_ext.HardPairMiner`, the paper's miner.

    Args:
        alpha: weight of the positives' exponent, above 0; 2.
        beta: weight of the negatives' exponent, above 0; 50.
        base: :math:`\lambda`; 0.5.
        kwargs: see :mod:`pml_ext.losses.tiled`; ``distance`` is cosine similarity by default.

    *Source:* Wang et al., Multi-Similarity Loss with General Pair Weighting, 2019, https://arxiv.org/abs/1904.06627.
    """

    graded = True
    float_masks_up_to = 1 << 15

    def __init__(
        self, alpha: float = 2.0, beta: float = 50.0, base: float = 0.5, **kwargs: Unpack[PairLossSettings]
    ) -> None:
        check_number(self, "alpha", alpha, above=0)
        check_number(self, "beta", beta, above=0)
        check_number(self, "base", base)
        super().__init__(**kwargs)
        self.alpha = alpha
        self.beta = beta
        self.base = base

    def equation(self, pairs: Pairs) -> Terms:
        """One value per anchor."""
        # Read here: torch 2.14 cannot compile a second loss with other values if a Function reads them first.
        alpha = float(self.alpha)
        beta = float(self.beta)
        sign = 1 if self.distance.is_inverted else -1
        slopes = (-sign * alpha, sign * beta)
        matrix = with_log_weights(pairs.matrix, pairs.positives, pairs.weights, slopes[0])
        weights = (1 / alpha, 1 / beta)
        return per_anchor(log_one_plus_sums(matrix, pairs.masks, slopes, (self.base, self.base), weights=weights))


class TiledNTXentLoss(_TiledLoss):
    r"""PML's ``NTXentLoss`` (InfoNCE with labels) in memory linear in the batch.

    .. math::
        -\operatorname{mean}_{(a, p)} \log
        \frac{e^{s_{ap} / \tau}}{e^{s_{ap} / \tau} + \sum_{n \in N_a} e^{s_{an} / \tau}}

    The reducer gets one value per positive pair; an anchor without negatives gives 0. A pair counts as often as it is
    listed. Values are exact, where PML's are bounded.

    Args:
        temperature: :math:`\tau`, above 0; 0.07.
        kwargs: see :mod:`pml_ext.losses.tiled`; ``distance`` is cosine similarity by default; distances are negated.
    """

    counts_repeats = True

    def __init__(self, temperature: float = 0.07, **kwargs: Unpack[PairLossSettings]) -> None:
        check_number(self, "temperature", temperature, above=0)
        super().__init__(**kwargs)
        self.temperature = temperature

    def compilation(self, rows: int, by_labels: bool) -> Compilation:
        """``ALL_ENTRIES``."""
        return Compilation.ALL_ENTRIES

    def equation(self, pairs: Pairs) -> Terms:
        """One value per positive pair."""
        logits = self._nearness(pairs.matrix) / self.temperature
        anchors, partners = pairs.listed
        counted = logits
        if pairs.counts is not None:
            counted = logits + torch.where(pairs.negatives, pairs.counts[1], 1).log()
        negatives = log_sum_exp(counted, pairs.negatives)
        exponents = negatives[anchors] - logits[anchors, partners]
        return per_pair(log_one_plus_exp(exponents), pairs)


def _has_negatives(inputs: LossInputs) -> Tensor:
    """Whether a batch has a negative pair, as a tensor, to avoid waiting for the device."""
    if inputs.indices_tuple is not None:
        return torch.tensor(len(inputs.indices_tuple[-1]) > 0)
    if inputs.related is not None:
        return inputs.related.has_negatives()
    assert inputs.labels is not None
    assert inputs.ref_labels is not None
    first = inputs.labels[0]
    return torch.ne(inputs.labels, first).any() | torch.ne(inputs.ref_labels, first).any()


class TiledSupConLoss(_TiledLoss):
    r"""PML's ``SupConLoss`` in memory linear in the batch.

    .. math::
        -\operatorname{mean}_i \frac{1}{|P_i|} \sum_{p \in P_i}
        \log \frac{e^{s_{ip} / \tau}}{\sum_{j \in P_i \cup N_i} e^{s_{ij} / \tau}}

    The reducer gets one value per anchor. As in PML, the mean runs over the values above 0. A batch without negative
    pairs gives 0. A graded relation weights the mean over positives.

    Args:
        temperature: :math:`\tau`, above 0; 0.1.
        kwargs: see :mod:`pml_ext.losses.tiled`; ``distance`` is cosine similarity by default; distances are negated.

    *Source:* Khosla et al., Supervised Contrastive Learning, 2020, https://arxiv.org/abs/2004.11362.
    """

    graded = True

    def __init__(self, temperature: float = 0.1, **kwargs: Unpack[PairLossSettings]) -> None:
        check_number(self, "temperature", temperature, above=0)
        super().__init__(**kwargs)
        self.temperature = temperature

    def finalize_terms(self, terms: Terms, inputs: LossInputs) -> Terms:
        """Multiply by 0 if the batch has no negative pair."""
        info = terms["loss"]
        if isinstance(info["losses"], Tensor):
            factor = _has_negatives(inputs).to(info["losses"].device, torch.float32)  # 1 or 0
            # a literal, since torch.compile of torch 2.6 has no operator | of dictionaries
            terms["loss"] = {**info, "losses": info["losses"] * factor, "divisor": info["divisor"] * factor}
        return terms

    def equation(self, pairs: Pairs) -> Terms:
        """One value per anchor."""
        logits = self._nearness(pairs.matrix) / self.temperature
        count = pairs.positives.sum(1, dtype=logits.dtype)
        total = log_sum_exp(logits, pairs.positives | pairs.negatives)
        if pairs.weights is None:
            mean = masked_mean(logits, pairs.positives, count)
        else:
            weights = torch.where(pairs.positives, pairs.weights, 0)
            mean = masked_sum(weights * logits, pairs.positives) / torch.where(count > 0, weights.sum(1), 1)
        losses = total * (count > 0).to(logits.dtype) - mean
        return per_anchor(losses, divisor=(losses > 0).sum())

    def get_default_reducer(self) -> BaseReducer:
        """The mean of the values above 0."""
        return SumOverDivisorReducer()


class TiledTripletMarginLoss(_SummedByRow):
    r"""PML's ``TripletMarginLoss`` over all triplets of the batch, without a list of them.

    .. math:: \operatorname{mean}_{(a, p, n)} \max(0, d_{ap} - d_{an} + m)

    The mean runs over the triplets with a nonzero loss. Reducers are the same as for :class:`TiledContrastiveLoss`,
    except ``PerAnchorReducer``. A pair or triplet counts as often as it is listed. With references, ``swap`` uses the
    positive reference itself; PML uses the batch row of the same index. :class:`pml_ext.BatchAllTripletLoss` is faster
    for many positives.

    *Cost:* additionally, a few passes over ``P x R`` for P positive pairs.

    Args:
        margin: m, in units of the distance (0 to 2 for normalized embeddings); 0.05.
        swap: whether a smaller positive-negative distance replaces the anchor-negative distance.
        smooth_loss: whether :math:`\log(1 + e^x)` replaces the hinge.
        kwargs: see :mod:`pml_ext.losses.tiled`; ``distance`` is Euclidean, of normalized embeddings, by default.
    """

    tiles = "classes"  # swap needs the rows of an anchor's positives
    counts_repeats = True
    _of_pairs = False

    def __init__(
        self, margin: float = 0.05, swap: bool = False, smooth_loss: bool = False, **kwargs: Unpack[PairLossSettings]
    ) -> None:
        check_number(self, "margin", margin)
        super().__init__(**kwargs)
        self.margin = margin
        self.swap = swap
        self.smooth_loss = smooth_loss

    def compilation(self, rows: int, by_labels: bool) -> Compilation:
        """``EAGER``: each pair needs a row of negatives."""
        return Compilation.EAGER

    def equation(self, pairs: Pairs) -> Terms:
        """One sum per pair (a, p), or one value per listed triplet."""
        if pairs.triplets is not None:
            values = self._values(pairs, *pairs.triplets)
            return per_triplet(values, pairs.triplets, divisor=(values != 0).sum())
        reducer = reducer_of(self.reducer, "loss")

        def sums(a: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
            times = None if pairs.counts is None else pairs.counts[1][a]
            return row_sums(reducer, self._values(pairs, a, p), pairs.negatives[a], times)

        pairs_per_part = max(1, _ENTRIES // pairs.matrix.shape[1])
        sums_and_counts = in_parts(sums, pairs_per_part, *pairs.listed)
        totals, counts = zip(*sums_and_counts, strict=True)
        return per_pair(torch.cat(totals), pairs, divisor=torch.cat(counts).sum())

    def _values(self, pairs: Pairs, a: Tensor, p: Tensor, n: Tensor | None = None) -> Tensor:
        """Losses of triplets, ``[T]``; without ``n``, of pairs (a, p) with every column, ``[P, R]``."""
        columns: Tensor | slice
        d_ap = pairs.matrix[a, p]
        if n is None:
            columns = slice(None)  # all of them
            d_ap = d_ap[:, None]
        else:
            columns = n
        d_an = pairs.matrix[a, columns]
        if self.swap:
            matrix, rows = pairs.between(p)
            d_an = self.distance.smallest_dist(d_an, matrix[rows, columns])
        excess: Tensor = self.distance.margin(d_ap, d_an) + self.margin
        if self.smooth_loss:
            return torch.nn.functional.softplus(excess)
        return torch.relu(excess)
