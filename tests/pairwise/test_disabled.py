"""A call that torch.compile leaves as it is."""

import pytest
import torch

from pml_ext.pairwise import disabled, run_eagerly


@pytest.fixture
def graphs():
    """The graphs that a compiled function has given, and the backend that collects them."""
    found = []

    def backend(graph, example):
        found.append(graph)
        return graph.forward

    return found, backend


@pytest.mark.parametrize("eagerly", [disabled.call, run_eagerly])
def test_a_call_stands_outside_of_the_graph(graphs, eagerly):
    found, backend = graphs
    seen = []

    def nonzero(x):
        seen.append((type(x), torch.compiler.is_compiling()))
        return x.nonzero()

    @torch.compile(backend=backend)
    def compiled(x):
        return eagerly(nonzero, x + 1) * 2

    x = torch.tensor([0.0, -1.0, 3.0])
    assert compiled(x).tolist() == [[0], [4]]
    assert seen == [(torch.Tensor, False)]
    assert found
    assert not any("nonzero" in graph.code for graph in found)
