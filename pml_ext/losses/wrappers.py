"""Wrappers around losses: a regularizer with labels, a weighted sum, views of each image."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor

from .. import pml
from ..pairwise import check_batch, to_full_precision
from ..pairwise.batch import describe
from ..registry.components import capabilities
from ..relations import Relation
from ..settings import check_number, settings_repr
from .calling import (
    PassesPairs,
    WrapperCapabilities,
    WrapsLoss,
    call_loss,
    check_call,
    check_module,
    counts_repeats,
    relation_of,
    takes_all_pairs,
    unwrapped,
)
from .full_precision import FullPrecisionForward
from .mining import mine, without_copies
from .pairs import AllPairsExceptSelf, Terms, reduced


class _Given(NamedTuple):
    labels: Any
    indices_tuple: Any
    ref_labels: Any


class RegularizedLoss(PassesPairs, FullPrecisionForward, pml.BaseMetricLossFunction):  # type: ignore[misc]
    r"""A loss plus a weighted regularizer that may see the labels.

    .. math:: \mathcal{L} = \mathcal{L}_{loss} + w \, \mathcal{L}_{regularizer}

    Each part has its own reducer; the sum is in float32 or float64. The regularizer sees the batch, never the
    references. ``collect_stats`` records ``loss_value`` and ``regularizer_value`` (without the weight).

    Args:
        loss: any PML loss or loss wrapper.
        regularizer: a :class:`LabeledRegularizer` or a PML regularizer.
        weight: of the regularizer; may be 0.
        kwargs: as in PML's losses, without ``distance`` and ``reducer``.

    Raises:
        TypeError, ValueError: a part that is not a module, a distance or reducer, or a labeled regularizer for a loss
            with a relation.
    """

    capabilities = WrapperCapabilities({"labels", "indices_tuple", "references"}, lambda self: self._capabilities())

    def __init__(
        self,
        loss: torch.nn.Module,
        regularizer: torch.nn.Module,
        weight: float = 1.0,
        **kwargs: Unpack[pml.LossSettings],
    ) -> None:
        check_module(self, "loss", loss, "MultiSimilarityLoss()")
        check_module(self, "regularizer", regularizer, "LpRegularizer()")
        check_number(self, "weight", weight)
        for name in ("distance", "reducer"):
            if name in kwargs:
                raise ValueError(f"RegularizedLoss has no {name} of its own; give it to the loss or the regularizer")
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

    def _capabilities(self) -> frozenset[str]:
        if self._labeled_regularizer:
            return capabilities(self.loss) | {"labels"}
        return capabilities(self.loss)

    def forward(
        self,
        embeddings: Tensor,
        labels: Any = None,
        indices_tuple: Any = None,
        ref_emb: Tensor | None = None,
        ref_labels: Any = None,
    ) -> Any:
        """The weighted sum; arguments as for the loss."""
        labels, ref_labels = check_call(self.relation, embeddings, labels, indices_tuple, ref_emb, ref_labels)
        if self.relation is not None and labels is not None:  # PML's base takes only integers [B]
            indices_tuple = _Given(labels, indices_tuple, ref_labels)
            labels = None
            ref_labels = None
        return super().forward(embeddings, labels, indices_tuple, ref_emb, ref_labels)

    def compute_loss(
        self, embeddings: Tensor, labels: Tensor | None, indices_tuple: Any, ref_emb: Tensor, ref_labels: Tensor | None
    ) -> Terms:
        """The two parts, both already reduced."""
        if isinstance(indices_tuple, _Given):
            labels, indices_tuple, ref_labels = indices_tuple
        if ref_emb is embeddings:
            loss = call_loss(self.loss, embeddings, labels, indices_tuple, None, None)
        else:
            loss = call_loss(self.loss, embeddings, labels, indices_tuple, ref_emb, ref_labels)
        if self._labeled_regularizer:
            regularizer = self.regularizer(embeddings, labels)
        else:
            regularizer = self.regularizer(embeddings)
        if self.collect_stats:
            self.loss_value = loss.detach()
            self.regularizer_value = regularizer.detach()
        return {"loss": reduced(loss)["loss"], "regularizer": reduced(regularizer * self.weight)["loss"]}

    def _sub_loss_names(self) -> list[str]:
        return ["loss", "regularizer"]

    extra_repr = settings_repr


class MultipleLosses(pml.MultipleLosses):  # type: ignore[misc]
    r"""PML's weighted sum of losses, with references, summed in float32 or float64.

    .. math:: \mathcal{L} = \sum_i w_i \, \mathcal{L}_i

    It works inside :class:`pml_ext.CrossBatchMemory`, :class:`pml_ext.DistributedLoss` and
    :class:`pml_ext.RegularizedLoss`. PML's HookContainer records a dictionary of losses, not a list.

    Args:
        losses: a list or dictionary of losses; at least one.
        miners: a miner or None for each loss of a list, or miners for some keys of a dictionary.
        weights: a number for each loss; 1 by default, 0 is allowed.
    """

    capabilities = WrapperCapabilities({"labels", "indices_tuple", "references"}, lambda self: self._capabilities())

    def __init__(
        self,
        losses: Sequence[torch.nn.Module] | Mapping[str, torch.nn.Module],
        miners: Sequence[Any] | Mapping[str, Any] | None = None,
        weights: Sequence[float] | Mapping[str, float] | None = None,
    ) -> None:
        if not losses:
            raise ValueError("MultipleLosses needs at least one loss; got none")
        kind: Any = dict if isinstance(losses, Mapping) else list
        try:
            super().__init__(
                kind(losses),
                None if miners is None else kind(miners),
                None if weights is None else kind(weights),
            )
        except (AssertionError, TypeError, ValueError) as error:
            if isinstance(losses, Mapping):
                wanted = f"the keys {sorted(losses)}"
            else:
                wanted = f"the length {len(losses)}"
            raise ValueError(
                f"miners and weights of MultipleLosses must have {wanted} of its losses: {error}"
            ) from None

    def _capabilities(self) -> frozenset[str]:
        common = frozenset.intersection(*(capabilities(loss) for _, loss in self.items()))
        return common | {"labels"}

    @property
    def takes_all_pairs(self) -> bool:
        """Whether each loss has a miner or accepts AllPairsExceptSelf."""
        return bool(self.miners) or all(takes_all_pairs(loss) for _, loss in self.items())

    @property
    def counts_repeats(self) -> bool:
        """Whether any loss does."""
        return any(counts_repeats(loss) for _, loss in self.items())

    @property
    def relation(self) -> Relation | None:
        """The relation of the first loss that has one."""
        for _, loss in self.items():
            found = relation_of(loss)
            if found is not None:
                return found
        return None

    def items(self) -> Iterator[tuple[Any, torch.nn.Module]]:
        """The losses by name or number."""
        yield from self.losses.items() if self.is_dict else enumerate(self.losses)

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        """The weighted sum; arguments as for PML's losses."""
        labels, ref_labels = check_call(self.relation, embeddings, labels, indices_tuple, ref_emb, ref_labels)
        self_column = None
        if isinstance(indices_tuple, AllPairsExceptSelf):
            self_column = indices_tuple.columns
        if self.miners and indices_tuple is not None and self_column is None:
            raise ValueError("MultipleLosses has miners of its own; leave out either them or the indices_tuple")
        total = torch.zeros((), device=embeddings.device)
        for key, loss in self.items():
            miner = None
            if self.miners and (not self.is_dict or key in self.miners):
                miner = self.miners[key]
            if miner is not None:
                mined: Any = mine(miner, embeddings, labels, ref_emb, ref_labels, self_column)
            elif self_column is None or takes_all_pairs(loss):
                mined = indices_tuple
            else:
                mined = without_copies(pml.get_all_pairs_indices(labels, ref_labels), self_column)
            value = call_loss(loss, embeddings, labels, mined, ref_emb, ref_labels)
            total = total + self.weights[key] * to_full_precision(value)
        return total


class SelfSupervisedLoss(WrapsLoss, pml.SelfSupervisedLoss):  # type: ignore[misc]
    r"""A loss of two or more views of each image; the views of image i share the label i.

    .. math:: \mathcal{L}\big([z^{(1)}; \dots; z^{(V)}],\ [1..B; \dots; 1..B]\big)

    Here :math:`z^{(v)}`, ``[B, D]``, are the embeddings of view v. With ``symmetric=False``, the first view has the
    anchors and the others are references. Two views give the values of PML's class, which accepts fewer losses.

    Args:
        loss: a loss with the capability ``"labels"``, and ``"references"`` if ``symmetric`` is False. It must not
            contain a memory, a fixed number of classes, or DistributedLoss.
        symmetric: whether all views are anchors, as one batch.

    Example:
        >>> from pytorch_metric_learning.losses import NTXentLoss
        >>> one, two, three = torch.randn(3, 16, 8)
        >>> SelfSupervisedLoss(NTXentLoss())(one, [two, three]).shape
        torch.Size([])
    """

    capabilities = frozenset({"references"})

    def __init__(self, loss: torch.nn.Module, symmetric: bool = True) -> None:
        check_module(self, "loss", loss, "NTXentLoss()")
        if reason := _no_views(loss, symmetric):
            raise TypeError(f"SelfSupervisedLoss labels images by their place in the batch, and {reason}")
        super().__init__(loss, symmetric)

    def forward(self, embeddings: Tensor, ref_emb: Tensor | Sequence[Tensor]) -> Any:
        """The loss of one view of each image, ``[B, D]``, and further views in the same order.

        ``ref_emb`` is a view, or a list or tuple of views.
        """
        others: list[Any] = [ref_emb]
        if isinstance(ref_emb, (list, tuple)):
            others = list(ref_emb)
        if isinstance(embeddings, (list, tuple)) or not others:
            raise TypeError(
                "SelfSupervisedLoss needs one view as embeddings, and one or more others as ref_emb; got "
                f"{describe(embeddings)}, and {describe(ref_emb)}; of a list of views, type "
                "loss(views[0], views[1:])"
            )
        check_batch(embeddings)
        for view in others:
            check_batch(view, names=("ref_emb", ""))
            if embeddings.shape != view.shape:
                raise ValueError(
                    f"SelfSupervisedLoss needs each view of an image in its row; got {tuple(embeddings.shape)} "
                    f"embeddings and {tuple(view.shape)} ref_emb"
                )
        labels = torch.arange(len(embeddings), device=embeddings.device)
        if self.symmetric:
            return call_loss(self.loss, torch.cat([embeddings, *others]), labels.repeat(1 + len(others)))
        references = others[0] if len(others) == 1 else torch.cat(others)
        return call_loss(self.loss, embeddings, labels, ref_emb=references, ref_labels=labels.repeat(len(others)))

    extra_repr = settings_repr


def _no_views(loss: torch.nn.Module, symmetric: bool) -> str:
    """Why a loss does not work in SelfSupervisedLoss, or an empty string."""
    name = type(unwrapped(loss)).__name__
    has = capabilities(unwrapped(loss))
    if "labels" not in has:
        return f"{name} takes no labels"
    for module in loss.modules():
        part = type(module).__name__
        if getattr(module, "joins_processes", False):
            return f"{part} joins the batches of processes; it goes around: {part}(SelfSupervisedLoss(loss))"
        if "state" in capabilities(module):
            return f"{part} compares with past batches, where other images have the same labels"
        if hasattr(module, "num_classes"):
            return f"{part} has a fixed number of classes; take a loss that compares embeddings with each other"
    # PML's list also has NCALoss, which takes references if they are not the batch itself.
    fits = symmetric or "references" in has or name in pml.SelfSupervisedLoss.supported_losses()
    if fits:
        return ""
    return f"{name} takes no references; type symmetric=True"
