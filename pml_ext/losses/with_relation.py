"""A relation in place of equal labels, for any loss or miner."""

from typing import Any

import torch
from torch import Tensor

from .. import pml
from ..pairwise import autocast_off, check_indices_tuple
from ..registry.components import capabilities
from ..relations import Relation, label_tensors, related_pairs
from .calling import WrapperCapabilities, call_loss, counts_repeats, shift_indices, unwrapped
from .mining import without_copies
from .pairs import AllPairsExceptSelf


class WithRelation(torch.nn.Module):
    """A loss or miner with a relation in place of equal labels.

    The :class:`pml_ext.relations.Relation` defines the form of the labels. PML's losses get all positive and negative
    pairs as ``indices_tuple``, and no labels; ``AngularLoss``, ``FastAPLoss``, ``NCALoss``, ``NPairsLoss`` and
    ``SmoothAPLoss`` need labels and raise an error. PML's miners are called once per anchor, with its positives and
    negatives as references. That gives the result of the whole batch unless anchors depend on each other, as in
    ``HDCMiner`` and ``UniformHistogramMiner``. Other packages' losses and miners are treated like PML's.

    *Cost:* a list of all pairs for PML's losses; one call per anchor for PML's miners; nothing for ours.

    Args:
        loss_or_miner: a loss that accepts an ``indices_tuple``, or a miner.
        relation: graded only for a loss of ``pml_ext`` that uses weights.

    Raises:
        TypeError, ValueError: any other loss, miner or relation.

    Example:
        >>> from pytorch_metric_learning.losses import ContrastiveLoss
        >>> from pml_ext import SharedLabel
        >>> loss = WithRelation(ContrastiveLoss(), SharedLabel())
        >>> loss(torch.eye(3), torch.tensor([[1, 1, 0], [0, 1, 1], [0, 0, 1]])).shape
        torch.Size([])
    """

    capabilities = WrapperCapabilities(
        {"labels", "indices_tuple", "references", "relation"},
        lambda self: capabilities(unwrapped(self.inner)) | {"labels", "relation"},
    )
    takes_all_pairs = True

    @property
    def counts_repeats(self) -> bool:
        """The loss's own value."""
        return counts_repeats(self.inner)

    def __init__(self, loss_or_miner: torch.nn.Module, relation: Relation) -> None:
        super().__init__()
        name = type(loss_or_miner).__name__
        if not isinstance(loss_or_miner, torch.nn.Module) or not isinstance(relation, Relation):
            raise TypeError(f"WithRelation needs a loss or a miner and a relation; got {loss_or_miner!r}, {relation!r}")
        has = capabilities(unwrapped(loss_or_miner))
        self.mines = isinstance(loss_or_miner, pml.BaseMiner)
        self.takes_relation = "relation" in has
        if not self.mines and ("indices_tuple" not in has or hasattr(unwrapped(loss_or_miner), "num_classes")):
            raise TypeError(f"WithRelation passes pairs as indices_tuple; {name} does not compare pairs")
        if relation.graded and not (self.takes_relation and getattr(unwrapped(loss_or_miner), "graded", self.mines)):
            raise ValueError(f"{name} has no weights of pairs; take a relation with graded=False")
        self.inner = loss_or_miner
        self.relation = relation

    def forward(self, embeddings: Tensor, labels: Any = None, *arguments: Any, **named: Any) -> Any:
        """The loss or the mined indices."""
        if self.mines:
            return self._mined(embeddings, labels, *arguments, **named)
        return self._loss(embeddings, labels, *arguments, **named)

    def _loss(
        self,
        embeddings: Tensor,
        labels: Any = None,
        indices_tuple: Any = None,
        ref_emb: Tensor | None = None,
        ref_labels: Any = None,
    ) -> Any:
        if ref_emb is not None:
            references = {"ref_emb": ref_emb, "ref_labels": ref_labels}
        else:
            references = {}
        if self.takes_relation:
            return self.inner(embeddings, labels, indices_tuple, **references, relation=self.relation)
        check_indices_tuple(indices_tuple)
        if indices_tuple is None or isinstance(indices_tuple, AllPairsExceptSelf):
            indices_tuple = self._pairs(embeddings, labels, ref_emb, ref_labels, indices_tuple)
        return call_loss(self.inner, embeddings, None, indices_tuple, ref_emb)

    def _pairs(
        self, embeddings: Tensor, labels: Any, ref_emb: Tensor | None, ref_labels: Any, but: AllPairsExceptSelf | None
    ) -> tuple[Tensor, ...]:
        rows, columns = label_tensors(self.relation, embeddings, labels, ref_emb, ref_labels)
        pairs = related_pairs(self.relation, rows, columns, ref_emb is None or ref_emb is embeddings)
        if but is None:
            return pairs
        return without_copies(pairs, but.columns)

    @torch.no_grad()
    def _mined(
        self,
        embeddings: Tensor,
        labels: Any = None,
        ref_emb: Tensor | None = None,
        ref_labels: Any = None,
        indices_tuple: Any = None,
    ) -> tuple[Tensor, ...]:
        if self.takes_relation:
            if indices_tuple is None:
                listed = {}
            else:
                listed = {"indices_tuple": indices_tuple}
            return self.inner(embeddings, labels, ref_emb, ref_labels, relation=self.relation, **listed)  # type: ignore[no-any-return]
        if indices_tuple is not None and not isinstance(indices_tuple, AllPairsExceptSelf):
            name = type(self.inner).__name__
            raise ValueError(f"{name} takes no indices_tuple; leave it out, or take a miner of ours")
        a1, p, a2, n = self._pairs(embeddings, labels, ref_emb, ref_labels, indices_tuple)
        columns = embeddings if ref_emb is None else ref_emb
        count = len(embeddings)  # pairs are listed anchor by anchor
        positives = torch.split(p, torch.bincount(a1, minlength=count).tolist())
        negatives = torch.split(n, torch.bincount(a2, minlength=count).tolist())
        found = []
        with autocast_off(embeddings.device):
            for anchor, (positive, negative) in enumerate(zip(positives, negatives, strict=True)):
                places = torch.cat([positive, negative])
                alike = torch.cat([torch.ones_like(positive), torch.zeros_like(negative)])
                if len(places):
                    one = torch.ones_like(places[:1])
                    mined = self.inner(embeddings[anchor : anchor + 1], one, columns[places], alike)
                    found.append(shift_indices(mined, places, anchor))
        if not found:
            return a1, p, a2, n
        return tuple(torch.cat(each) for each in zip(*found, strict=True))
