"""Base of losses that compute in float32 or float64, whatever the dtype of the embeddings."""

from typing import Any

from torch import Tensor

from ..pairwise import (
    autocast_off,
    check_batch,
    check_indices_tuple,
    check_references,
    labels_to_int64,
    normalizes,
    pair_to_full_precision,
    with_bad_input,
)


class FullPrecisionForward:
    """Mixin before PML's loss base: checks the batch and computes in float32 or float64.

    NaN or infinity in embeddings or references makes the value NaN. A loss whose only capability is ``"labels"``
    rejects calls without labels, and with an indices_tuple or references.
    """

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Any:
        """The reduced loss; arguments as in :meth:`PairLoss.forward`."""
        others = (indices_tuple, ref_emb, ref_labels)
        takes_labels_alone = getattr(self, "capabilities", ()) == {"labels"}
        if takes_labels_alone and (labels is None or any(each is not None for each in others)):
            raise ValueError(f"{type(self).__name__} takes embeddings and labels, no indices_tuple and no references")
        check_batch(embeddings, labels)
        indices_tuple = check_indices_tuple(indices_tuple)
        check_references(embeddings, ref_emb, ref_labels)
        with autocast_off(embeddings.device):
            has_references = ref_emb is not None and ref_emb is not embeddings
            embeddings, ref_emb = pair_to_full_precision(embeddings, ref_emb, normalizes(self))
            labels = labels_to_int64(labels)
            ref_labels = labels_to_int64(ref_labels)
            value = super().forward(embeddings, labels, indices_tuple, ref_emb, ref_labels)  # type: ignore[misc]
            return with_bad_input(value, embeddings, ref_emb if has_references else None)
