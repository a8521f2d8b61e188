"""What an equation gives a reducer: PML's dictionary of values, what they belong to, and how many elements they are."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

Terms = dict[str, dict[str, Any]]
Triplets = tuple[Tensor, Tensor, Tensor]


class HasListed(Protocol):
    """What has positive pairs: :class:`pml_ext.losses.Pairs`."""

    positives: Tensor
    everywhere: bool

    @property
    def listed(self) -> tuple[Tensor, Tensor]:
        """Anchors and partners, each ``[P]``."""


class AllButItself(NamedTuple):
    """In the place of an ``indices_tuple``: all pairs by the labels, where references hold the batch itself.

    Args:
        places: the reference that each embedding is, ``[B]``; the two are no pair, and have one gradient.
    """

    places: Tensor


def per_anchor(losses: Tensor, divisor: Tensor | float | None = None) -> Terms:
    """Terms of one value per anchor.

    Args:
        losses: ``[B]``, or ``[T]`` where the equation sees a tile of T anchors.
        divisor: how many elements the values stand for, where that is not their number.
    """
    return _term(losses, torch.arange(len(losses), device=losses.device), "element", divisor)


def per_pair(losses: Tensor, pairs: HasListed, divisor: Tensor | float | None = None) -> Terms:
    """Terms of one value per positive pair.

    Args:
        losses: ``[P]``, in the order of ``pairs.listed``, and finite where that is all places.
        pairs: the batch, or a tile of it.
        divisor: how many elements the values stand for, where that is not P: a sum over triplets per pair, say.
    """
    if pairs.everywhere:
        mask = pairs.positives.flatten()
        count = mask.sum()
        terms = _term(torch.where(mask, losses, 0), None, "pos_pair", count if divisor is None else divisor)
        terms["loss"]["count"] = count
        return terms
    return _term(losses, pairs.listed, "pos_pair", divisor)


def per_triplet(losses: Tensor, triplets: Triplets, divisor: Tensor | float | None = None) -> Terms:
    """Terms of one value per triplet.

    Args:
        losses: ``[T]``.
        triplets: anchors, positives and negatives, each ``[T]``.
        divisor: how many elements the values stand for, where that is not T.
    """
    return _term(losses, triplets, "triplet", divisor)


def reduced(value: Tensor) -> Terms:
    """Terms of one value for the whole batch."""
    return {"loss": {"losses": value, "indices": None, "reduction_type": "already_reduced"}}


def _term(losses: Tensor, indices: Any, kind: str, divisor: Tensor | float | None) -> Terms:
    divisor = len(losses) if divisor is None else divisor
    return {"loss": {"losses": losses, "indices": indices, "reduction_type": kind, "divisor": divisor}}


def without_empty(terms: Terms) -> Terms:
    """Terms as PML's reducers want them: 0 in place of values of no element."""
    zero = {"losses": 0, "indices": None, "reduction_type": "already_reduced"}
    return {name: zero if _empty(info["losses"]) else info for name, info in terms.items()}


def _empty(losses: Any) -> bool:
    return isinstance(losses, Tensor) and losses.ndim > 0 and len(losses) == 0


class JoinedTerms:
    """Terms of tiles as tensors that can be joined, and back.

    Args:
        order: the row of the batch, and the column, that each row of the tiles is, ``[B]``; None where it is the same.
    """

    def __init__(self, order: Tensor | None = None) -> None:
        self._order = order
        self._kinds: dict[str, tuple[str, bool]] = {}  # by name: the kind of reduction, and whether values are elements

    def flat(self, terms: Terms, start: int, owner: str) -> tuple[list[Tensor], list[Tensor]]:
        """The values of a tile, and what belongs to them.

        Args:
            terms: of a tile.
            start: its first row.
            owner: whose they are, for the text.

        Raises:
            TypeError: terms of one value for the whole batch.
        """
        values, rest = [], []
        for name, info in terms.items():
            losses, indices, divisor = info["losses"], info["indices"], info.get("divisor")
            if info["reduction_type"] == "already_reduced":
                raise TypeError(
                    f"{owner} gives one value for the whole batch, which tiles of it do not have; return "
                    "values per anchor, pair or triplet, or leave out the class's tiles"
                )
            elements = divisor is None or (isinstance(divisor, int) and divisor == len(losses))
            self._kinds[name] = info["reduction_type"], elements
            anchors, *partners = (indices,) if isinstance(indices, Tensor) else indices
            values.append(losses)
            rest += [anchors + start, *partners]
            rest.append(
                losses.new_full((1,), divisor)
                if not isinstance(divisor, Tensor)
                else divisor.detach().reshape(1).to(losses.dtype)
            )
        return values, rest

    def terms(self, values: list[Tensor], rest: list[Tensor]) -> Terms:
        """Terms of the whole batch, pairs in row-major order.

        Args:
            values: joined over the tiles.
            rest: likewise.
        """
        terms, left = {}, iter(rest)
        for losses, (name, (kind, elements)) in zip(values, self._kinds.items(), strict=True):
            indices = [next(left) for _ in range({"element": 1, "triplet": 3}.get(kind, 2))]
            divisor = next(left)
            total: Tensor | int = len(losses) if elements else divisor.sum()
            if self._order is not None:
                indices = [self._order[index] for index in indices]
                places = indices[0] if len(indices) == 1 else indices[0] * len(self._order) + indices[1]
                by_row = places.argsort(stable=True)
                losses, indices = losses[by_row], [index[by_row] for index in indices]
            kept: Any = indices[0] if len(indices) == 1 else tuple(indices)
            terms[name] = {"losses": losses, "indices": kept, "reduction_type": kind, "divisor": total}
        return terms
