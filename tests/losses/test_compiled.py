"""torch.compile: one graph for any number of positives, or none; counted by a backend of our own."""

import copy

import pytest
import torch
from pytorch_metric_learning import reducers
from pytorch_metric_learning.regularizers import LpRegularizer

import pml_ext
from pml_ext import CrossBatchMemory, PDDMDistance, RegularizedLoss

ONE_GRAPH = {
    "CBMLLoss": [{}, {"mining": False}, {"delta": "ratio", "averaging": "sqrt"}],
    "AngularLoss": [{}, {"alpha": 36.0}, {"embedding_regularizer": LpRegularizer(), "embedding_reg_weight": 0.1}],
    "NPairLoss": [{}, {"normalize_embeddings": False}, {"reducer": reducers.SumReducer()}],
    "NPairAngularLoss": [{}],
    "BatchAllTripletLoss": [{}, {"kind": "squared-hinge"}, {"triplets": "all"}, {"positives": "local"}],
    "TiledContrastiveLoss": [{}],
    "TiledMultiSimilarityLoss": [{}],
    "TiledNTXentLoss": [{}],
    "TiledSupConLoss": [{}],
}
APART = {  # their shapes follow from the labels, or the scores: docs/scale.md says why
    "AngularLoss": [{"normalize_embeddings": False}, {"reducer": reducers.AvgNonZeroReducer()}],
    "AngularTripletLoss": [{}],
    "BatchAllTripletLoss": [{"kind": "ratio"}, {"kind": "soft"}],
    "TiledTripletMarginLoss": [{}],
    "PDDMLoss": [{"distance": PDDMDistance(8, dropout=0.0)}],
}


def each(table):
    return [pytest.param(name, settings, id=f"{name} {settings}") for name in table for settings in table[name]]


def batch(number):
    """As many embeddings each time, and another number of positives."""
    draw = torch.Generator().manual_seed(number)
    embeddings = torch.randn(40, 8, generator=draw)
    if number == 3:
        embeddings[4] = embeddings[5]  # a distance of 0
    labels = torch.arange(40) if number == 4 else torch.randint(0, 3 + number, (40,), generator=draw)
    return embeddings, labels


class Counting:
    """A backend that runs graphs as they are, and counts them."""

    def __init__(self):
        self.graphs = 0
        torch._dynamo.reset()

    def __call__(self, graph, example):
        self.graphs += 1
        return graph.forward


def value_and_slopes(loss, embeddings, labels, *rest):
    x = embeddings.clone().requires_grad_()
    value = loss(x, labels, *rest)
    value.backward()
    return value.detach(), x.grad


@pytest.mark.parametrize(("name", "settings"), each(ONE_GRAPH))
def test_one_graph_serves_any_number_of_positives(name, settings):
    if settings == {"positives": "local"} and torch.__version__.startswith("2.6."):
        pytest.skip("torch 2.6 breaks the graph at dataclasses.replace")
    loss = getattr(pml_ext, name)(**settings)
    backend = Counting()
    compiled = torch.compile(loss, backend=backend, fullgraph=True)
    for number in range(20):
        expected = value_and_slopes(loss, *batch(number))
        torch.testing.assert_close(value_and_slopes(compiled, *batch(number)), expected, rtol=2e-5, atol=2e-6)
    assert backend.graphs == 1


@pytest.mark.parametrize("setting", ["alpha", "beta", "base"])
def test_multi_similarity_compiles_with_different_settings(setting):
    backend = Counting()
    for value in (0.4, 0.6, 0.9):
        loss = pml_ext.TiledMultiSimilarityLoss(**{setting: value})
        found = value_and_slopes(torch.compile(loss, backend=backend), *batch(1))
        torch.testing.assert_close(found, value_and_slopes(loss, *batch(1)), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("name", "settings"), each(APART))
def test_losses_without_one_graph_run_uncompiled(name, settings):
    loss = getattr(pml_ext, name)(**settings)
    backend = Counting()
    compiled = torch.compile(loss, backend=backend)
    for number in (0, 5):
        found = value_and_slopes(compiled, *batch(number))
        torch.testing.assert_close(found, value_and_slopes(loss, *batch(number)), rtol=0, atol=0)
    assert backend.graphs == 0


WRAPPERS = {
    "regularized": lambda: RegularizedLoss(pml_ext.AngularLoss(), pml_ext.DensityRegularizer(num_classes=60)),
    "memory": lambda: CrossBatchMemory(pml_ext.CBMLLoss(), 8, memory_size=80),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_wrappers_settle_within_a_few_batches(name):
    torch.manual_seed(0)
    loss = WRAPPERS[name]()
    backend = Counting()
    plain = copy.deepcopy(loss)
    compiled = torch.compile(loss, backend=backend)
    graphs = []
    for number in range(20):
        expected = value_and_slopes(plain, *batch(number))
        torch.testing.assert_close(value_and_slopes(compiled, *batch(number)), expected, rtol=2e-5, atol=2e-6)
        graphs.append(backend.graphs)
    assert graphs[-1] <= graphs[0] + 1
