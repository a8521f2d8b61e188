"""A relation between items for PML's own losses and miners, through pairs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..components import capabilities
from ..pairwise import Relation, autocast_off, check_indices_tuple, label_tensors, related_pairs
from ..pml import BaseMiner
from .calling import WrapperCapabilities, call_loss, inside
from .pairs import AllButItself


class WithRelation(nn.Module):
    r"""A loss or a miner with a relation in place of equal labels; see :class:`pml_ext.pairwise.Relation`.

    Labels have any form that the relation takes. Our pair losses and miners get the relation itself. Another loss gets
    all positive and negative pairs as ``indices_tuple``, and no labels; PML's ``AngularLoss``, ``FastAPLoss``,
    ``NCALoss``, ``NPairsLoss`` and ``SmoothAPLoss`` need labels and refuse. Another miner is called once for each
    anchor, with the related items as references, labeled positive or negative. The result is that of the whole batch
    for a miner that chooses for each anchor by itself: all of PML's but ``HDCMiner`` and ``UniformHistogramMiner``.

    *Cost:* around PML's losses a list of all pairs; around PML's miners a call for each anchor. Around ours, nothing.

    Args:
        loss_or_miner: a loss that takes an ``indices_tuple``, or a miner.
        relation: not graded, unless the loss is one of ours that takes weights.

    Raises:
        TypeError: something else. ValueError: a graded relation for a loss or miner of PML.

    Example:
        >>> from pytorch_metric_learning.losses import ContrastiveLoss
        >>> from pml_ext import SharedLabel
        >>> loss = WithRelation(ContrastiveLoss(), SharedLabel())
        >>> loss(torch.eye(3), torch.tensor([[1, 1, 0], [0, 1, 1], [0, 0, 1]])).shape
        torch.Size([])
    """

    capabilities = WrapperCapabilities(
        {"labels", "indices_tuple", "references", "relation"},
        lambda self: capabilities(inside(self.inner)) | {"labels", "relation"},
    )
    takes_all_pairs = True

    def __init__(self, loss_or_miner: nn.Module, relation: Relation) -> None:
        super().__init__()
        name = type(loss_or_miner).__name__
        if not isinstance(loss_or_miner, nn.Module) or not isinstance(relation, Relation):
            raise TypeError(f"WithRelation wants a loss or a miner and a relation; got {loss_or_miner!r}, {relation!r}")
        has = capabilities(inside(loss_or_miner))
        self.mines = isinstance(loss_or_miner, BaseMiner)
        self.takes_relation = "relation" in has
        if not self.mines and ("indices_tuple" not in has or hasattr(inside(loss_or_miner), "num_classes")):
            raise TypeError(f"WithRelation tells a loss of pairs by its indices_tuple; {name} compares no pairs")
        if relation.graded and not (self.takes_relation and getattr(inside(loss_or_miner), "graded", self.mines)):
            raise ValueError(f"{name} has no weights of pairs; take a relation with graded=False")
        self.inner, self.relation = loss_or_miner, relation

    def forward(self, embeddings: Tensor, labels: Any = None, *arguments: Any, **named: Any) -> Any:
        """Return the loss or the mined indices; arguments as of the loss or the miner inside."""
        return (self._mined if self.mines else self._loss)(embeddings, labels, *arguments, **named)

    def _loss(
        self,
        embeddings: Tensor,
        labels: Any = None,
        indices_tuple: Any = None,
        ref_emb: Tensor | None = None,
        ref_labels: Any = None,
    ) -> Any:
        references = {"ref_emb": ref_emb, "ref_labels": ref_labels} if ref_emb is not None else {}
        if self.takes_relation:
            return self.inner(embeddings, labels, indices_tuple, **references, relation=self.relation)
        check_indices_tuple(indices_tuple)
        if indices_tuple is None or isinstance(indices_tuple, AllButItself):
            a1, p, a2, n = self._pairs(embeddings, labels, ref_emb, ref_labels)
            if isinstance(indices_tuple, AllButItself):
                pulled, pushed = p != indices_tuple.places[a1], n != indices_tuple.places[a2]
                a1, p, a2, n = a1[pulled], p[pulled], a2[pushed], n[pushed]
            indices_tuple = a1, p, a2, n
        return call_loss(self.inner, embeddings, None, indices_tuple, ref_emb)

    def _pairs(self, embeddings: Tensor, labels: Any, ref_emb: Tensor | None, ref_labels: Any) -> tuple[Tensor, ...]:
        rows, columns = label_tensors(self.relation, embeddings, labels, ref_emb, ref_labels)
        return related_pairs(self.relation, rows, columns, ref_emb is None or ref_emb is embeddings)

    @torch.no_grad()
    def _mined(
        self,
        embeddings: Tensor,
        labels: Any = None,
        ref_emb: Tensor | None = None,
        ref_labels: Any = None,
        **named: Any,
    ) -> tuple[Tensor, ...]:
        if self.takes_relation:
            return self.inner(embeddings, labels, ref_emb, ref_labels, relation=self.relation, **named)  # type: ignore[no-any-return]
        a1, p, a2, n = self._pairs(embeddings, labels, ref_emb, ref_labels, **named)
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
                    ends = {0} if len(mined) == 3 else {0, 2}
                    indices = [index.to(places.device) for index in mined]
                    found.append([index + anchor if k in ends else places[index] for k, index in enumerate(indices)])
        if not found:
            return a1, p, a2, n
        return tuple(torch.cat(each) for each in zip(*found, strict=True))
