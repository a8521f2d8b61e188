"""Which losses take all pairs with references that hold the batch by a rule, so that no pair is listed."""

from __future__ import annotations

import torch

from .calling import inside
from .multiple import MultipleLosses
from .pair_loss import PairLoss
from .regularized import RegularizedLoss


def takes_all_but_itself(loss: torch.nn.Module) -> bool:
    """Whether a loss takes :class:`pml_ext.losses.terms.AllButItself` as its ``indices_tuple``.

    Args:
        loss: a pair loss of ours, or wrappers around such; PML's losses want lists.
    """
    loss = inside(loss)
    if isinstance(loss, RegularizedLoss):
        return takes_all_but_itself(loss.loss)
    if isinstance(loss, MultipleLosses):
        return not loss.miners and all(takes_all_but_itself(each) for _, each in loss.items())
    return isinstance(loss, PairLoss)
