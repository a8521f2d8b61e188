"""Joins the terms of tiles into the terms of the batch."""

from typing import NamedTuple

import torch
from torch import Tensor

from .pairs import Terms


class _Kind(NamedTuple):
    reduction_type: str
    counts_values: bool  # whether the divisor is the number of values
    num_indices: int  # number of index tensors: 1 for anchors, 2 for pairs, 3 for triplets


class JoinedTerms:
    """Converts the terms of tiles to tensors that can be concatenated, and back."""

    def __init__(self, owner: str, order: Tensor | None) -> None:
        self._owner = owner
        self._order = order
        self._kinds: dict[str, _Kind] = {}

    def flat(self, terms: Terms, start: int) -> list[Tensor]:
        """Values, indices and divisors of a tile that begins at row ``start``."""
        values: list[Tensor] = []
        rest: list[Tensor] = []
        for name, info in terms.items():
            losses = info["losses"]
            if info["reduction_type"] == "already_reduced":
                raise TypeError(
                    f"{self._owner} gives one value for the whole batch, which tiles of it do not have; return "
                    "values per anchor, pair or triplet, or leave out the class's tiles"
                )
            divisor = info.get("divisor")
            if divisor is None:
                divisor = len(losses)
            counts_values = isinstance(divisor, int) and divisor == len(losses)
            values.append(losses)

            indices = info["indices"]
            if isinstance(indices, Tensor):
                indices = (indices,)
            anchors, *partners = indices
            self._kinds[name] = _Kind(info["reduction_type"], counts_values, len(indices))
            rest.append(anchors + start)
            rest.extend(partners)
            rest.append(torch.as_tensor(divisor, device=losses.device).detach().reshape(1).to(losses.dtype))
        return [*values, *rest]

    def terms(self, results: tuple[Tensor, ...]) -> Terms:
        """The terms of the batch, pairs in row-major order."""
        terms: Terms = {}
        next_index = len(self._kinds)  # the results are the losses of all terms, then indices and divisor of each
        for number, (name, kind) in enumerate(self._kinds.items()):
            losses = results[number]
            place_of_divisor = next_index + kind.num_indices
            indices = list(results[next_index:place_of_divisor])
            next_index = place_of_divisor + 1
            divisor: Tensor | int
            if kind.counts_values:
                divisor = len(losses)
            else:
                divisor = results[place_of_divisor].sum()
            if self._order is not None:
                losses, indices = _in_batch_order(losses, indices, self._order)
            terms[name] = {
                "losses": losses,
                "indices": indices[0] if len(indices) == 1 else tuple(indices),
                "reduction_type": kind.reduction_type,
                "divisor": divisor,
            }
        return terms


def _in_batch_order(losses: Tensor, indices: list[Tensor], order: Tensor) -> tuple[Tensor, list[Tensor]]:
    indices = [order[index] for index in indices]
    places = indices[0]
    if len(indices) > 1:
        places = places * len(order) + indices[1]
    by_row = places.argsort(stable=True)
    return losses[by_row], [index[by_row] for index in indices]
