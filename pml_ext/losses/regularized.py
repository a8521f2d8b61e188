"""A loss with a regularizer that may see the labels: PML's own slot passes embeddings only."""

from __future__ import annotations

import warnings
from typing import Any, Unpack

import torch
from torch import Tensor

from ..components import capabilities
from ..errors import TrainingWarning
from ..pairwise import FullPrecisionForward, transformed
from ..pml import BaseMetricLossFunction, LossSettings
from ..reducers import SumOfReducedReducer
from ..settings import check_number
from .calling import WrapperCapabilities, call_loss, takes_all_pairs

OUTWEIGHED = 3.0  # how many times as long as the loss's a regularizer's gradient is when a warning says so


class RegularizationWarning(TrainingWarning):
    """A regularizer's gradient outweighs the loss's by far."""


class RegularizedLoss(FullPrecisionForward, BaseMetricLossFunction):  # type: ignore[misc]
    r"""A loss plus a weighted regularizer that may see the labels.

    .. math:: \mathcal{L} = \mathcal{L}_{loss} + w \, \mathcal{L}_{regularizer}

    Both parts are reduced by their own reducers and summed in float32 or float64. The regularizer sees the embeddings
    of the batch, never the references. ``indices_tuple`` and references reach the loss only when given, and labels only
    if it takes them, so PML's wrappers fit too. With ``collect_stats`` the values are recorded as ``loss_value`` and
    ``regularizer_value`` (without the weight).

    The first time that gradients are wanted, the gradients of both parts by the embeddings are compared, and a
    :class:`RegularizationWarning` tells if the regularizer's is far longer: its weight does not belong to the loss's
    reduction then.

    Args:
        loss: any PML loss or loss wrapper.
        regularizer: a :class:`LabeledRegularizer`, or a regularizer of PML.
        weight: on the regularizer; may be 0.
        kwargs: as in PML's losses: ``collect_stats``, ``embedding_regularizer``, ...

    Example:
        >>> from pytorch_metric_learning.losses import ContrastiveLoss
        >>> from pytorch_metric_learning.regularizers import LpRegularizer
        >>> RegularizedLoss(ContrastiveLoss(), LpRegularizer(), weight=0.01).sub_loss_names()
        ['loss', 'regularizer']
    """

    capabilities = WrapperCapabilities(
        {"labels", "indices_tuple", "references"},
        lambda self: capabilities(self.loss) | ({"labels"} if self._labelled_regularizer else set()),
    )

    def __init__(
        self, loss: torch.nn.Module, regularizer: torch.nn.Module, weight: float = 1.0, **kwargs: Unpack[LossSettings]
    ) -> None:
        for name, module in (("loss", loss), ("regularizer", regularizer)):
            if not isinstance(module, torch.nn.Module):
                raise TypeError(
                    f"{name} of RegularizedLoss must be an object such as {_EXAMPLES[name]}; got {module!r}"
                )
        check_number(self, "weight", weight)
        super().__init__(**({"reducer": SumOfReducedReducer()} | kwargs))
        self.loss = loss
        self.regularizer = regularizer
        self.weight = weight
        self._compared = False
        self._labelled_regularizer = "labels" in getattr(regularizer, "capabilities", ())
        self.add_to_recordable_attributes(name="weight", is_stat=False)
        self.add_to_recordable_attributes(list_of_names=["loss_value", "regularizer_value"], is_stat=True)

    @property
    def takes_all_pairs(self) -> bool:
        """Whether the loss does; see :func:`takes_all_pairs`."""
        return takes_all_pairs(self.loss)

    def compute_loss(
        self,
        embeddings: Tensor,
        labels: Tensor | None,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor | None,
    ) -> dict[str, dict[str, Any]]:
        """Return the two parts, both already reduced."""
        references = (ref_emb, ref_labels) if ref_emb is not embeddings else (None, None)
        loss = call_loss(self.loss, embeddings, labels, indices_tuple, *references)
        regularizer = (
            self.regularizer(embeddings, labels) if self._labelled_regularizer else self.regularizer(embeddings)
        )
        self._compare_gradients(embeddings, loss, regularizer)
        if self.collect_stats:
            self.loss_value, self.regularizer_value = loss.detach(), regularizer.detach()
        return {"loss": _reduced(loss), "regularizer": _reduced(regularizer * self.weight)}

    def _compare_gradients(self, embeddings: Tensor, loss: Tensor, regularizer: Tensor) -> None:
        """Warn once if the regularizer's gradient would outweigh the loss's by far."""
        if self._compared or not self.weight or not embeddings.requires_grad:
            return
        if torch.compiler.is_compiling() or transformed():
            return
        lengths = [_gradient_length(value, embeddings) for value in (loss, regularizer)]
        self._compared = lengths[0] > 0  # a batch without pairs says nothing
        ratio = abs(self.weight) * lengths[1] / lengths[0] if lengths[0] > 0 else 0.0
        if ratio > OUTWEIGHED:
            fitting = float(f"{abs(self.weight) / ratio:.1g}")
            warnings.warn(
                f"the gradient of {type(self.regularizer).__name__} with weight {self.weight:g} is {ratio:.3g} times "
                f"as long as that of {type(self.loss).__name__}; the weight belongs to the loss's reduction (a sum "
                f"over pairs, or a mean): try weight={fitting:g}, where both are alike, or less",
                RegularizationWarning,
                stacklevel=2,
            )

    def _sub_loss_names(self) -> list[str]:
        return ["loss", "regularizer"]

    def extra_repr(self) -> str:
        """The weight."""
        return f"weight={self.weight}"


def _gradient_length(value: Tensor, embeddings: Tensor) -> float:
    if not value.requires_grad:
        return 0.0
    (gradient,) = torch.autograd.grad(value, embeddings, retain_graph=True, allow_unused=True)
    return 0.0 if gradient is None else float(gradient.norm())


_EXAMPLES = {"loss": "MultiSimilarityLoss()", "regularizer": "LpRegularizer()"}


def _reduced(value: Tensor) -> dict[str, Any]:
    return {"losses": value, "indices": None, "reduction_type": "already_reduced"}
