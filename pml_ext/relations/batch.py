"""The pairs of a batch under a relation."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..pairwise import RelationWeights, check_batch, check_references
from .base import Relation


class Related(NamedTuple):
    """An ``indices_tuple`` that carries a relation, its labels, and the caller's tuple."""

    relation: Relation
    labels: Tensor  # of the batch, [B, ...]
    ref_labels: Tensor  # of the columns, [R, ...]
    indices_tuple: Any

    def weights(self) -> RelationWeights:
        """Weights of the batch's pairs, for any slice of its rows."""

        def of_rows(rows: slice) -> Tensor:
            return self.relation.matrix(self.labels[rows], self.ref_labels)

        return RelationWeights(of_rows, self.relation.graded)

    def has_negatives(self) -> Tensor:
        """Whether any pair is negative, in memory linear in the batch."""
        parts = torch.split(self.labels, 1024)
        return torch.stack([(self.relation.matrix(part, self.ref_labels) == 0).any() for part in parts]).any()


def label_tensors(
    relation: Relation, embeddings: Tensor, labels: Any, ref_emb: Tensor | None, ref_labels: Any
) -> tuple[Tensor, Tensor]:
    """Check a batch and its references; return the labels of rows and columns."""
    check_batch(embeddings)
    check_references(embeddings, ref_emb, ref_labels if ref_emb is None else None)
    rows = relation.tensor(labels, len(embeddings), embeddings.device)
    if ref_emb is None:
        columns = relation.tensor(labels, len(embeddings), embeddings.device, 1)
    else:
        columns = relation.tensor(ref_labels, len(ref_emb), embeddings.device, 1)
    return rows, columns


def related(
    relation: Relation, embeddings: Tensor, labels: Any, indices_tuple: Any, ref_emb: Tensor | None, ref_labels: Any
) -> tuple[Tensor | None, Any, Tensor | None]:
    """Labels, indices_tuple and ref_labels of a relation, for PML's base classes.

    Labels that are equivalent to classes become these classes, so one-hot sets give the result of labels bit for bit.
    Otherwise a :class:`Related` replaces the ``indices_tuple``.
    """
    if labels is None and indices_tuple is not None and not relation.graded:
        return None, indices_tuple, None
    if relation.needs_labels and (labels is None or (ref_emb is not None and ref_labels is None)):
        missing = "labels" if labels is None else "ref_labels"
        raise ValueError(f"{missing} must be given for {relation}")
    rows, columns = label_tensors(relation, embeddings, labels, ref_emb, ref_labels)
    if not torch.compiler.is_compiling() or rows.ndim == 1:
        classes = relation.classes(rows)
        ref_classes = relation.classes(columns)
        if classes is not None and ref_classes is not None:
            if ref_emb is None:
                ref_classes = None
            return classes, indices_tuple, ref_classes
    return None, Related(relation, rows, columns, indices_tuple), None


def related_pairs(relation: Relation, labels: Tensor, ref_labels: Tensor, itself: bool) -> tuple[Tensor, ...]:
    """All pairs as an ``indices_tuple``; ``itself``: whether the columns are the rows."""
    weights = relation.matrix(labels, ref_labels)
    positives = weights > 0
    negatives = weights == 0
    if itself:
        positives.fill_diagonal_(False)
        negatives.fill_diagonal_(False)
    return (*torch.where(positives), *torch.where(negatives))
