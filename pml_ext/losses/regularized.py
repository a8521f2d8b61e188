"""A loss with a regularizer that may see the labels: PML's own slot passes embeddings only."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor

from ..components import capabilities
from ..pairwise import FullPrecisionForward, Related, Relation
from ..pml import BaseMetricLossFunction, LossSettings
from ..settings import check_number
from .calling import WrapperCapabilities, call_loss, checked, relation_of, takes_all_pairs
from .pairs import Terms, reduced


class RegularizedLoss(FullPrecisionForward, BaseMetricLossFunction):  # type: ignore[misc]
    r"""A loss plus a weighted regularizer that may see the labels.

    .. math:: \mathcal{L} = \mathcal{L}_{loss} + w \, \mathcal{L}_{regularizer}

    Both parts are reduced by their own reducers and summed in float32 or float64. The regularizer sees the embeddings
    of the batch, never the references. With ``collect_stats`` the values are recorded as ``loss_value`` and
    ``regularizer_value`` (without the weight).

    Args:
        loss: any PML loss or loss wrapper.
        regularizer: a :class:`LabeledRegularizer`, or a regularizer of PML; a labeled one is refused beside a loss with
            a relation.
        weight: on the regularizer; may be 0.
        kwargs: as in PML's losses.
    """

    capabilities = WrapperCapabilities(
        {"labels", "indices_tuple", "references"},
        lambda self: capabilities(self.loss) | ({"labels"} if self._labeled_regularizer else set()),
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
        super().__init__(**kwargs)
        self.loss = loss
        self.regularizer = regularizer
        self.weight = weight
        self._labeled_regularizer = "labels" in getattr(regularizer, "capabilities", ())
        if self._labeled_regularizer and self.relation is not None:
            raise ValueError(
                f"{type(regularizer).__name__} compares classes, and the loss compares by {self.relation}; leave out "
                'one of them (in a recipe: [loss] relation = "none")'
            )
        self.add_to_recordable_attributes(name="weight", is_stat=False)
        self.add_to_recordable_attributes(list_of_names=["loss_value", "regularizer_value"], is_stat=True)

    @property
    def takes_all_pairs(self) -> bool:
        """Whether the loss does; see :func:`takes_all_pairs`."""
        return takes_all_pairs(self.loss)

    @property
    def relation(self) -> Relation | None:
        """The relation of the loss."""
        return relation_of(self.loss)

    def forward(
        self,
        embeddings: Tensor,
        labels: Any = None,
        indices_tuple: Any = None,
        ref_emb: Tensor | None = None,
        ref_labels: Any = None,
    ) -> Any:
        """Return the weighted sum; arguments as of the loss."""
        if (relation := self.relation) is not None:
            labels, ref_labels = checked(relation, embeddings, labels, indices_tuple, ref_emb, ref_labels)
            if labels is not None and labels.ndim > 1:  # which PML's base refuses
                columns = labels if ref_emb is None else ref_labels
                indices_tuple, labels, ref_labels = Related(relation, labels, columns, indices_tuple), None, None
        return super().forward(embeddings, labels, indices_tuple, ref_emb, ref_labels)

    def compute_loss(
        self,
        embeddings: Tensor,
        labels: Tensor | None,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor | None,
    ) -> Terms:
        """Return the two parts, both already reduced."""
        if isinstance(indices_tuple, Related):
            _, labels, ref_labels, indices_tuple = indices_tuple
        references = (ref_emb, ref_labels) if ref_emb is not embeddings else (None, None)
        loss = call_loss(self.loss, embeddings, labels, indices_tuple, *references)
        regularizer = self.regularizer(embeddings, *([labels] if self._labeled_regularizer else []))
        if self.collect_stats:
            self.loss_value, self.regularizer_value = loss.detach(), regularizer.detach()
        return {"loss": reduced(loss)["loss"], "regularizer": reduced(regularizer * self.weight)["loss"]}

    def _sub_loss_names(self) -> list[str]:
        return ["loss", "regularizer"]

    def extra_repr(self) -> str:
        """Return the weight."""
        return f"weight={self.weight}"


_EXAMPLES = {"loss": "MultiSimilarityLoss()", "regularizer": "LpRegularizer()"}
