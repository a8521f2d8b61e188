"""Which pairs there are, as boolean matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from .reductions import masked_max, masked_min


def pair_masks(
    matrix: Tensor,
    labels: Tensor | None,
    indices_tuple: tuple[Tensor, ...] | None = None,
    ref_labels: Tensor | None = None,
    *,
    references: bool = False,
) -> tuple[Tensor, Tensor]:
    """Positive and negative pairs, each once.

    They follow from the labels, or from a miner's tuple, whose pairs (or the (a, p) and the (a, n) of whose triplets)
    are then all the pairs there are. Without references an embedding is no partner of itself, by index; with references
    nothing is left out, since they need not hold the batch: the tuple alone keeps an embedding from its own copy.

    Args:
        matrix: any tensor of shape ``[B, R]`` on the device wanted, such as the similarities; its values are not read.
        labels: ``[B]``; not needed with an ``indices_tuple``.
        indices_tuple: three index tensors (anchors, positives, negatives) or four (anchors, positives, anchors,
            negatives), or None.
        ref_labels: ``[R]``; needed with references and without an ``indices_tuple``.
        references: whether the columns are references and not the batch itself.

    Returns:
        Two boolean matrices ``[B, R]``.

    Raises:
        ValueError: neither labels nor a tuple, or a tuple of another length.
    """
    if indices_tuple is not None:
        positives, negatives = _masks_from_indices(matrix, indices_tuple)
        if not references:
            negatives.diagonal().fill_(False)
    else:
        columns = ref_labels if references else labels
        if labels is None or columns is None:
            missing = "labels" if labels is None else "ref_labels"
            raise ValueError(f"{missing} must be given where no indices_tuple is")
        positives = labels[:, None] == columns
        negatives = ~positives
    if not references:
        positives.diagonal().fill_(False)
    return positives, negatives


def _masks_from_indices(matrix: Tensor, indices_tuple: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    if not isinstance(indices_tuple, (tuple, list)) or len(indices_tuple) not in (3, 4):
        length = f" of length {len(indices_tuple)}" if isinstance(indices_tuple, (tuple, list)) else ""
        raise ValueError("indices_tuple must hold three index tensors (anchors, positives, negatives) or four "
                         "(anchors, positives, anchors, negatives); "
                         f"got a {type(indices_tuple).__name__}{length}")  # fmt: skip
    indices = [index.to(matrix.device, torch.long) for index in indices_tuple]
    a1, p, a2, n = indices if len(indices) == 4 else (indices[0], indices[1], indices[0], indices[2])
    return _mask(matrix, a1, p), _mask(matrix, a2, n)


def _mask(matrix: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    mask = torch.zeros(matrix.shape, dtype=torch.bool, device=matrix.device)
    return mask.index_put_((rows, columns), mask.new_ones(()))


@torch.no_grad()
def hard_pair_masks(
    similarity: Tensor, positives: Tensor, negatives: Tensor, epsilon: float = 0.1
) -> tuple[Tensor, Tensor]:
    r"""Pairs that violate a margin (MS mining; CBML, Eq. 25 and 26).

    .. math::
        P_i^* = \{j \in P_i : s_{ij} < \max_{N_i} s_{ik} + \epsilon\}, \qquad
        N_i^* = \{j \in N_i : s_{ij} > \min_{P_i} s_{ik} - \epsilon\}

    Args:
        similarity: ``[B, R]``, larger means nearer.
        positives: boolean, ``[B, R]``.
        negatives: boolean, ``[B, R]``.
        epsilon: the margin, in units of the similarity.

    Returns:
        Two boolean matrices ``[B, R]``: subsets of the masks given, empty for an anchor without positives or negatives.
        Every pair of a row with NaN counts as hard, so that no NaN is left out.
    """
    nearest_negative = masked_max(similarity, negatives)
    farthest_positive = masked_min(similarity, positives)
    # ``mask > easy`` is "in the mask and not easy"; no pair of a row with NaN is easy
    return (
        positives > (similarity >= nearest_negative[:, None] + epsilon),
        negatives > (similarity <= farthest_positive[:, None] - epsilon),
    )
