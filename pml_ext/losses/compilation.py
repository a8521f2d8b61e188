"""How ``torch.compile`` treats a loss."""

import enum
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..pairwise import AllPairsExceptSelf
from ..reducers import has_uniform_weights, reduce_uniformly, reducer_of
from ..relations import Related
from .pairs import Terms, reduced


class Compilation(enum.Enum):
    """How ``torch.compile`` treats an equation."""

    ONE_GRAPH = "one graph"
    """No shape of the equation depends on the labels; it is part of the graph unchanged."""

    ALL_ENTRIES = "all entries"
    """``pairs.listed`` has all matrix entries, so that no shape depends on the labels; the equation is in the graph."""

    EAGER = "eager"
    """The loss runs outside of the graph."""


class CompiledLoss:
    """Mixin of losses that declare how their equation is compiled."""

    counts_repeats: ClassVar[bool]
    collect_stats: bool
    reducer: Any
    _sub_loss_names: Any

    def compilation(self, rows: int, by_labels: bool) -> Compilation:
        """How ``torch.compile`` treats the equation for a matrix with ``rows`` rows.

        ``by_labels``: whether pairs follow from labels alone. ``ALL_ENTRIES`` becomes ``EAGER`` for a reducer with
        unequal weights.
        """
        return Compilation.ONE_GRAPH

    def _compilation_of_call(self, embeddings: Tensor, indices_tuple: Any, ref_emb: Tensor | None) -> Compilation:
        by_labels = indices_tuple is None and (ref_emb is None or ref_emb is embeddings)
        compilation = self.compilation(len(embeddings), by_labels)
        if compilation is not Compilation.ALL_ENTRIES:
            return compilation
        if isinstance(indices_tuple, Related):
            listed = indices_tuple.indices_tuple
        else:
            listed = indices_tuple
        lists_pairs = listed is not None and not isinstance(listed, AllPairsExceptSelf)
        if lists_pairs and (len(listed) == 3 or self.counts_repeats):
            return Compilation.EAGER
        if self.collect_stats or not self.weighs_equally():
            return Compilation.EAGER
        return Compilation.ALL_ENTRIES

    def weighs_equally(self, gradient_device: torch.device | None = None) -> bool:
        """Whether the reducers weight all values equally; see :func:`has_uniform_weights`."""
        reducers = [reducer_of(self.reducer, name) for name in self._sub_loss_names()]
        return all(has_uniform_weights(reducer, gradient_device) for reducer in reducers)

    def _reduced_uniformly(self, terms: Terms) -> Terms:
        values = {}
        for name, info in terms.items():
            reducer = reducer_of(self.reducer, name)
            value = reduce_uniformly(reducer, info["losses"], info["count"], info["divisor"])
            values[name] = reduced(value)["loss"]
        return values
