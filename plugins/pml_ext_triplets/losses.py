"""Triplet losses over the whole batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pml_ext.plugin import (
    BaseDistance,
    BaseMetricLossFunction,
    BaseReducer,
    EuclideanDistance,
    FullPrecisionForward,
    SumOverDivisorReducer,
    check_choice,
    check_number,
    matrix_of,
    pair_masks,
    require_distance,
)

from .functional import KINDS, lay_out, local_positives, pair_sums, triplet_values


class BatchAllTripletLoss(FullPrecisionForward, BaseMetricLossFunction):  # type: ignore[misc]
    r"""The mean triplet loss over all violating triplets of the batch, without listing them.

    .. math::
        \mathcal{L} = \frac{1}{|S|} \sum_{(a, p, n) \in S} L(a, p, n), \qquad
        S = \{(a, p, n) : a \neq p,\ d_{an} < d_{ap} + m\}

    with L2 distances d of normalised embeddings and, by ``kind``,

    .. math::
        \max(0, d_{ap} - d_{an} + m), \quad \max(0, d_{ap}^2 - d_{an}^2 + m), \quad
        \tanh\frac{d_{ap} - d_{an}}{2}, \quad d_{ap} + \log(e^{m - d_{an}} + e^{m - d_{pn}})

    The paper calls it batch-hard; in the literature it is batch-all over the terms that are not zero. It is exact, and
    no triplet is formed.

    The reducer gets one value an ordered pair (a, p), the sum over the pair's negatives in S, with ``divisor`` = the
    size of S; the default reducer divides by it, any other one reduces the pair sums. An ``indices_tuple`` of triplets
    makes those the elements, of which S keeps what violates; one of pairs narrows the positives and negatives.
    With ``collect_stats``, ``violating`` (the share of all triplets that is in S) is recorded.

    *Cost:* one product of ``B x D x R`` forward and one backward, and a few passes over ``B x R`` for each positive of
    an anchor; from 24 positives on, hinges sort every row once instead. Memory of about ten ``B x R``.

    *Pair with:* a sampler of several images a class, such as PML's ``MPerClassSampler``.

    Args:
        margin: m; the paper gives none, its program has 0.2. Of no meaning to ``"ratio"`` but for S.
        kind: ``"hinge"``, ``"squared-hinge"``, ``"ratio"`` or ``"soft"``.
        triplets: ``"violating"`` for S, or ``"all"``: the mean over all triplets.
        positives: ``"all"``, or ``"local"``: those not above a percentile of their anchor's distances (Sec. 5.3).
        percentile: that percentile, from 0 to 100; 60 in the paper.
        kwargs: those of PML's losses: ``distance`` (one where smaller means nearer), ``reducer``,
            ``embedding_regularizer``, ``embedding_reg_weight``, ``collect_stats``.

    Raises:
        ValueError: a setting outside its range, or a distance that is a similarity.

    Example:
        >>> loss = BatchAllTripletLoss(margin=0.2, kind="hinge")
        >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item()
        0.20000004768371582

    *Source:* Shah, Clustering and Querying Images from Unknown Classes Using Metric Learning, Sec. 5; the form is that
    of Hermans et al., In Defense of the Triplet Loss for Person Re-Identification, 2017,
    https://arxiv.org/abs/1703.07737.
    """

    capabilities = frozenset({"labels", "indices_tuple", "references"})

    def __init__(
        self,
        margin: float = 0.2,
        kind: str = "hinge",
        triplets: str = "violating",
        positives: str = "all",
        percentile: float = 60.0,
        **kwargs: Any,
    ) -> None:
        check_number(self, "margin", margin)
        check_choice(self, "kind", kind, KINDS)
        check_choice(self, "triplets", triplets, ("violating", "all"))
        check_choice(self, "positives", positives, ("all", "local"))
        check_number(self, "percentile", percentile, least=0, most=100)
        super().__init__(**kwargs)
        require_distance(self, self.distance)
        self.margin, self.kind, self.triplets = margin, kind, triplets
        self.positives, self.percentile = positives, percentile
        self.add_to_recordable_attributes(list_of_names=["margin", "percentile"], is_stat=False)
        self.add_to_recordable_attributes(name="violating", is_stat=True)

    def compute_loss(
        self,
        embeddings: Tensor,
        labels: Tensor | None,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor | None,
    ) -> dict[str, dict[str, Any]]:
        """One sum a pair (a, p), or one value a listed triplet."""
        if len(embeddings) == 0 or len(ref_emb) == 0:
            return self.zero_losses()  # type: ignore[no-any-return]
        distances, references = matrix_of(self.distance, embeddings, ref_emb)
        between = None
        if self.kind == "soft":
            between = matrix_of(self.distance, ref_emb, ref_emb)[0] if references else distances
        if indices_tuple is not None and len(indices_tuple) == 3:
            return self._listed(distances, indices_tuple, between, references)
        positives, negatives = pair_masks(distances, labels, indices_tuple, ref_labels, references=references)
        if self.positives == "local":
            positives = local_positives(distances.detach(), positives, self.percentile)
        pairs = lay_out(positives)
        everything = self.triplets == "all"
        sums, counts = pair_sums(distances, pairs, negatives, self.kind, self.margin, everything, between)
        size = counts.sum()
        if self.collect_stats:
            possible = (positives.sum(1, dtype=counts.dtype) * negatives.sum(1, dtype=counts.dtype)).sum()
            self.violating = size / possible.clamp(min=1)
        indices = (pairs.anchors, pairs.positives)
        return {"loss": {"losses": sums, "indices": indices, "reduction_type": "pos_pair", "divisor": size}}

    def _listed(
        self, distances: Tensor, triplets: tuple[Tensor, ...], between: Tensor | None, references: bool
    ) -> dict[str, dict[str, Any]]:
        """The triplets of a miner, each an element; those outside S give 0 and are not counted in the divisor."""
        a, p, n = (index.to(distances.device) for index in triplets)
        if self.positives == "local":
            mask = torch.zeros_like(distances, dtype=torch.bool).index_put_(
                (a, p), torch.ones_like(a, dtype=torch.bool)
            )
            kept = local_positives(distances.detach(), mask, self.percentile)[a, p]
            a, p, n = a[kept], p[kept], n[kept]
        if not references:
            others = a != p
            a, p, n = a[others], p[others], n[others]
        d_ap, d_an = distances[a, p], distances[a, n]
        values = triplet_values(self.kind, self.margin, d_ap, d_an, between[p, n] if between is not None else None)
        inside = torch.ones_like(values) if self.triplets == "all" else (d_an < d_ap + self.margin).to(values.dtype)
        if self.collect_stats:
            self.violating = inside.sum() / max(1, len(inside))
        return {"loss": {"losses": values * inside, "indices": (a, p, n), "reduction_type": "triplet",
                         "divisor": inside.sum()}}  # fmt: skip

    def get_default_distance(self) -> BaseDistance:
        """Euclidean, of normalised embeddings."""
        return EuclideanDistance()

    def get_default_reducer(self) -> BaseReducer:
        """The sum over the divisor, the number of triplets in S."""
        return SumOverDivisorReducer()

    def extra_repr(self) -> str:
        """The settings."""
        names = ("margin", "kind", "triplets", "positives", "percentile")
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
