"""The triplet loss over all triplets of a batch."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Unpack

import torch
from torch import Tensor

from pml_ext.plugin import (
    BaseReducer,
    Compilation,
    PairLoss,
    PairLossSettings,
    Pairs,
    RunView,
    SumOverDivisorReducer,
    Terms,
    check_choice,
    check_number,
    per_pair,
    per_triplet,
)

from .functional import KINDS, Hinge, Soft, all_positions, lay_out, local_positives, pair_sums

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class BatchAllTripletLoss(PairLoss):
    r"""The mean triplet loss over all violating triplets of the batch, without listing them.

    .. math::
        \mathcal{L} = \frac{1}{|S|} \sum_{(a, p, n) \in S} L(a, p, n), \qquad
        S = \{(a, p, n) : a \neq p,\ d_{an} < d_{ap} + m\}

    with L2 distances d of normalized embeddings and, by ``kind``,

    .. math::
        \max(0, d_{ap} - d_{an} + m), \quad \max(0, d_{ap}^2 - d_{an}^2 + m), \quad
        \tanh\frac{d_{ap} - d_{an}}{2}, \quad d_{ap} + \log(e^{m - d_{an}} + e^{m - d_{pn}})

    The reducer gets each pair's sum over its negatives in S; the default one divides the total by the size of S. PML's
    reducers of single values, such as ``MeanReducer``, need an ``indices_tuple`` of triplets; each then has one value,
    0 outside S. ``collect_stats`` records ``violating``, the share of triplets in S.

    *Cost:* one product of ``B x D x R`` forward and one backward; a few passes over ``B x R`` per positive of an
    anchor, or one sort for 25 or more; memory of about five ``B x R``.

    *Pair with:* PML's ``MPerClassSampler``.

    Args:
        margin: m, in units of the distance (0 to 2), or of its square with ``"squared-hinge"``; 0.2 in the paper's
            program. With ``"ratio"`` it only affects S.
        kind: ``"hinge"``, ``"squared-hinge"``, ``"ratio"`` or ``"soft"``.
        triplets: ``"violating"``: the mean over S; ``"all"``: the mean over all triplets.
        positives: ``"all"``, or ``"local"``: up to a percentile of their anchor's positive distances (Sec. 5.3).
        percentile: the percentile of ``"local"``, from 0 to 100; 60 in the paper.
        kwargs: as in PML's losses; ``distance`` must be one where smaller means nearer.

    Raises:
        ValueError: a wrong setting or distance.

    Example:
        >>> loss = BatchAllTripletLoss(margin=0.2, kind="hinge")
        >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item()
        0.20000004768371582

    *Source:* Shah, Clustering and Querying Images from Unknown Classes Using Metric Learning, Sec. 5; after Hermans et
    al., 2017, https://arxiv.org/abs/1703.07737.
    """

    compares = "distances"
    statistic_names = ("violating",)
    tiles = "classes"
    float_masks_up_to = 1 << 15
    sums_triplets = True

    def __init__(
        self,
        margin: float = 0.2,
        kind: str = "hinge",
        triplets: str = "violating",
        positives: str = "all",
        percentile: float = 60.0,
        **kwargs: Unpack[PairLossSettings],
    ) -> None:
        check_number(self, "margin", margin)
        check_choice(self, "kind", kind, KINDS)
        check_choice(self, "triplets", triplets, ("violating", "all"))
        check_choice(self, "positives", positives, ("all", "local"))
        check_number(self, "percentile", percentile, least=0, most=100)
        super().__init__(**kwargs)
        self.margin = margin
        self.kind = kind
        self.triplets = triplets
        self.positives = positives
        self.percentile = percentile

    def compilation(self, rows: int, by_labels: bool) -> Compilation:
        """``ALL_ENTRIES`` for hinges, which compile with static shapes."""
        if issubclass(KINDS[self.kind], Hinge):
            return Compilation.ALL_ENTRIES
        return Compilation.EAGER

    def figures(self, run: RunView) -> dict[str, Figure]:
        """Plot four classes of test images by two principal components (Fig. 3)."""
        from pml_ext.plugin import figures

        labels = run.labels(run.queries)
        names = run.splits[run.queries].class_names
        classes = torch.unique(labels)
        chosen = torch.isin(labels, classes[figures.sample_indices(len(classes), 4, run.seed).to(classes.device)])
        part = {"test images": (run.embeddings(run.queries)[chosen], labels[chosen])}
        drawn = figures.projections(part, names, "pca", seed=run.seed)
        return {"Four classes by the two greatest principal components": drawn}

    def equation(self, pairs: Pairs) -> Terms:
        """One sum per pair (a, p), or one value per listed triplet."""
        if pairs.triplets is not None:
            return self._listed(pairs, *pairs.triplets)
        if self.positives == "local":
            local = local_positives(pairs.matrix.detach(), pairs.positives > 0, self.percentile)
            pairs = dataclasses.replace(pairs, masks=torch.stack((local, pairs.negatives > 0)))
        kind = KINDS[self.kind](self.margin)
        all_negatives = self.triplets == "all"
        if isinstance(kind, Soft):
            between = pairs.between(pairs.listed[1])
        else:
            between = None
        if pairs.lists_all:
            positives = all_positions(pairs.positives)
        else:
            positives = lay_out(*pairs.listed, len(pairs.matrix))
        sums, counts = pair_sums(pairs.matrix, positives, pairs.negatives, kind, all_negatives, between)
        size = counts.sum()
        if self.collect_stats:
            possible = (pairs.positives.sum(1, dtype=counts.dtype) * pairs.negatives.sum(1, dtype=counts.dtype)).sum()
            self.record(violating=(size, possible))
        return per_pair(sums, pairs, divisor=size)

    def _listed(self, pairs: Pairs, a: Tensor, p: Tensor, n: Tensor) -> Terms:
        if self.positives == "local":
            mask = torch.zeros_like(pairs.positives).index_put_((a, p), torch.ones_like(a, dtype=torch.bool))
            kept = local_positives(pairs.matrix.detach(), mask, self.percentile)[a, p]
            a = a[kept]
            p = p[kept]
            n = n[kept]
        if not pairs.has_references:
            others = a + pairs.first != p
            a = a[others]
            p = p[others]
            n = n[others]
        d_ap = pairs.matrix[a, p]
        d_an = pairs.matrix[a, n]
        kind = KINDS[self.kind](self.margin)
        d_pn = None
        if isinstance(kind, Soft):
            between, rows = pairs.between(p)
            d_pn = between[rows, n]
        values = kind.value(d_ap, d_an, d_pn)
        if self.triplets == "all":
            inside = torch.ones_like(values)
        else:
            inside = (d_an < kind.limit(d_ap)).to(values.dtype)
        self.record(violating=(inside.sum(), len(inside)))
        return per_triplet(values * inside, (a, p, n), divisor=inside.sum())

    def get_default_reducer(self) -> BaseReducer:
        """A reducer that divides the sum by the number of triplets in S."""
        return SumOverDivisorReducer()
