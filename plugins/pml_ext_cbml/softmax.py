"""The baseline of Fig. 2: a classifier on the features, trained by cross entropy."""

from collections.abc import Sequence
from typing import Any, Unpack

from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from pml_ext.plugin import (
    BaseMetricLossFunction,
    ClassLabels,
    FullPrecisionForward,
    GramDotProductSimilarity,
    LossSettings,
    check_count,
    per_anchor,
    reduced,
)


class SoftmaxLoss(FullPrecisionForward, BaseMetricLossFunction):  # type: ignore[misc]
    r"""Cross entropy of a linear classifier on the features (Fig. 2, "CE").

    .. math::
        \operatorname{mean}_i \Big[
        -\log \frac{\exp(w_{y_i} \cdot x_i + b_{y_i})}{\sum_c \exp(w_c \cdot x_i + b_c)} \Big]

    Unlike PML's ``NormalizedSoftmaxLoss``, it has a bias, and normalizes nothing. The classifier belongs to the loss,
    not to the tested network; ``[model] embedder = "none"`` trains and tests the trunk's features.

    *Cost:* one product of ``B x D x num_classes`` forward and two backward.

    Args:
        num_classes: number of training classes.
        embedding_size: D.
        class_labels: the label of each class; 0 to ``num_classes`` - 1 by default.
        kwargs: as in PML's losses, except ``distance``.

    Raises:
        ValueError: wrong ``class_labels``, or a ``distance``; in a call, an unknown label, references or an
            ``indices_tuple``.

    Example:
        >>> import torch
        >>> loss = SoftmaxLoss(num_classes=2, embedding_size=4, class_labels=[7, 9])
        >>> loss(torch.randn(3, 4), torch.tensor([7, 9, 9])).shape
        torch.Size([])

    *Source:* Kan et al., 2022; see :class:`pml_ext.CBMLLoss`.
    """

    capabilities = frozenset({"labels"})

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        class_labels: Sequence[int] | None = None,
        **kwargs: Unpack[LossSettings],
    ) -> None:
        check_count(self, "num_classes", num_classes)
        check_count(self, "embedding_size", embedding_size)
        if "distance" in kwargs:
            raise ValueError("SoftmaxLoss compares no embeddings, so it takes no distance; leave it out")
        kwargs["distance"] = GramDotProductSimilarity()  # says that features are not normalized
        super().__init__(**kwargs)
        self.classes = ClassLabels(num_classes, class_labels)
        self.num_classes = num_classes
        self.classifier = nn.Linear(embedding_size, num_classes)

    def compute_loss(
        self, embeddings: Tensor, labels: Tensor, indices_tuple: Any, ref_emb: Any, ref_labels: Any
    ) -> dict[str, dict[str, Any]]:
        """One value per image."""
        self.classes.check(labels, "SoftmaxLoss")
        if len(embeddings) == 0:
            return reduced(embeddings.sum() + 0 * self.classifier.weight.sum() + 0 * self.classifier.bias.sum())
        weight = self.classifier.weight.to(embeddings.dtype)
        bias = self.classifier.bias.to(embeddings.dtype)
        rows = self.classes(labels.to(self.classes.rows.device))
        return per_anchor(cross_entropy(linear(embeddings, weight, bias), rows, reduction="none"))
