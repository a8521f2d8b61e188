"""Mining between a batch and references that contain a copy of each embedding."""

import warnings
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from ..errors import TrainingWarning
from ..pml import BaseMiner, get_all_pairs_indices, miners
from .calling import shift_indices, takes_all_pairs
from .pairs import AllPairsExceptSelf


def mine(
    miner: Any,
    embeddings: Tensor,
    labels: Any,
    ref_emb: Tensor | None = None,
    ref_labels: Any = None,
    self_column: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """A miner's indices between a batch and references, without each embedding's own copy.

    ``self_column``, ``[B]``: the row of each embedding's own copy in ``ref_emb``; None without copies. Third-party
    miners are called once per anchor.
    """
    if ref_emb is not None and isinstance(miner, miners.EmbeddingsAlreadyPackagedAsTriplets):
        raise ValueError(
            "EmbeddingsAlreadyPackagedAsTriplets gives rows of the batch and accepts no references, such as the "
            "queue of a CrossBatchMemory; leave out the miner, or use TripletMarginMiner()"
        )
    declared = getattr(type(miner), "capabilities", None)  # a wrapper's property says nothing of the class
    if ref_emb is not None and isinstance(declared, Collection) and "references" not in declared:
        name = type(miner).__name__
        raise ValueError(
            f"{name} accepts no references, such as the queue of a CrossBatchMemory; leave out the miner, or declare "
            f'"references" in capabilities of {name} if it looks for partners in ref_emb'
        )
    if self_column is None or ref_emb is None:
        return miner(embeddings, labels, ref_emb, ref_labels)  # type: ignore[no-any-return]
    if getattr(miner, "joins_batches", False):
        name = type(miner).__name__
        raise ValueError(f"{name} joins batches, which DistributedLoss has done here; give the miner without {name}")
    if takes_all_pairs(miner):
        return miner(embeddings, labels, ref_emb, ref_labels, indices_tuple=AllPairsExceptSelf(self_column))  # type: ignore[no-any-return]
    find = _MINING_WITH_COPIES.get(type(miner), _by_anchor)
    mined = find(miner, embeddings, labels, ref_emb, ref_labels, self_column)  # type: ignore[no-untyped-call]
    if isinstance(miner, BaseMiner):  # the miner has recorded the pairs of one anchor, or copies too
        miner.reset_stats()
        miner.output_assertion(mined)
    return mined  # type: ignore[no-any-return]


def without_copies(mined: tuple[Tensor, ...], self_column: Tensor) -> tuple[Tensor, ...]:
    """Pairs or triplets whose partner is not the anchor's own copy."""
    if len(mined) == 3:
        a, p, n = mined
        kept = p != self_column[a]
        return a[kept], p[kept], n[kept]
    a1, p, a2, n = mined
    pulled = p != self_column[a1]
    pushed = n != self_column[a2]
    return a1[pulled], p[pulled], a2[pushed], n[pushed]


def _by_anchor(
    miner: Any, embeddings: Tensor, labels: Tensor, ref_emb: Tensor, ref_labels: Tensor, self_column: Tensor
) -> tuple[Tensor, ...]:
    if not getattr(type(miner), "mine", mine).__module__.startswith("pytorch_metric_learning."):
        warnings.warn(
            f"{type(miner).__name__} is called once for each embedding of the batch, with all rows of the memory but "
            "the embedding's own: right if it treats anchors independently; derive it from pml_ext.plugin.TiledMiner, "
            "which leaves out own rows in one call",
            TrainingWarning,
            stacklevel=2,
        )
    places = torch.arange(len(ref_emb), device=self_column.device)
    found = []
    for anchor in range(len(embeddings) if len(ref_emb) > 1 else 0):
        one = slice(anchor, anchor + 1)
        others = places[places != self_column[anchor]]
        mined = miner(embeddings[one], labels[one], ref_emb[others], ref_labels[others])
        found.append(shift_indices(mined, others, anchor))
    if not found:
        return tuple(places[:0] for _ in range(4))
    return tuple(torch.cat(each) for each in zip(*found, strict=True))


def _alone(
    miner: Any, embeddings: Tensor, labels: Tensor, ref_emb: Tensor, ref_labels: Tensor, self_column: Tensor
) -> tuple[Tensor, ...]:
    return without_copies(miner(embeddings, labels, ref_emb, ref_labels), self_column)


def _distance_weighted(
    miner: Any, embeddings: Tensor, labels: Tensor, ref_emb: Tensor, ref_labels: Tensor, self_column: Tensor
) -> tuple[Tensor, ...]:
    """Redraw a positive that is the anchor's own copy; copies do not affect the weights."""
    a, p, n = miner(embeddings, labels, ref_emb, ref_labels)
    others = (labels[:, None] == ref_labels).scatter_(1, self_column[:, None], False)
    kept = others.any(1)[a]
    a = a[kept]
    p = p[kept]
    n = n[kept]
    itself = p == self_column[a]
    if itself.any():
        p[itself] = torch.multinomial(others[a[itself]].float(), 1).flatten()
    return a, p, n


def _hdc(
    miner: Any, embeddings: Tensor, labels: Tensor, ref_emb: Tensor, ref_labels: Tensor, self_column: Tensor
) -> tuple[Tensor, ...]:
    if miner.was_set_externally:
        return without_copies(miner(embeddings, labels, ref_emb, ref_labels), self_column)
    miner.set_idx_externally(without_copies(get_all_pairs_indices(labels, ref_labels), self_column), labels)
    mined = miner(embeddings, labels, ref_emb, ref_labels)
    miner.reset_idx()
    return mined  # type: ignore[no-any-return]


@torch.no_grad()
def _uniform_histogram(
    miner: Any, embeddings: Tensor, labels: Tensor, ref_emb: Tensor, ref_labels: Tensor, self_column: Tensor
) -> tuple[Tensor, ...]:
    matrix = miner.distance(embeddings, ref_emb)
    a1, p, a2, n = without_copies(get_all_pairs_indices(labels, ref_labels), self_column)
    if len(a1):
        a1, p = miner.get_uniformly_distributed_pairs(matrix[a1, p], a1, p, miner.pos_per_bin)
    if len(a2):
        a2, n = miner.get_uniformly_distributed_pairs(matrix[a2, n], a2, n, miner.neg_per_bin)
    return a1, p, a2, n


_MINING_WITH_COPIES: dict[type, Callable[..., tuple[Tensor, ...]]] = {
    miners.AngularMiner: _alone,
    miners.PairMarginMiner: _alone,
    miners.TripletMarginMiner: _alone,
    miners.DistanceWeightedMiner: _distance_weighted,
    miners.HDCMiner: _hdc,
    miners.UniformHistogramMiner: _uniform_histogram,
}
