"""Gradient caching: micro-batches train as the whole batch does."""

import numpy as np
import pytest
import torch
from pytorch_metric_learning.losses import ContrastiveLoss
from pytorch_metric_learning.miners import MultiSimilarityMiner
from torch import nn

from pml_ext import CachedGradients, CBMLLoss, CrossBatchMemory, TiledMultiSimilarityLoss, registry
from pml_ext.errors import TrainingWarning
from pml_ext.testing.benchmark import peak_bytes


def network():
    """In float64: in float32 five steps of Adam make of a hinge that flips what no tolerance takes."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.Dropout2d(0.2),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.Linear(8 * 64, 16),
        nn.Dropout(0.1),
    ).double()


def batch(seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(48, 1, 8, 8, generator=generator, dtype=torch.float64), torch.arange(48) // 4


def train(net, step):
    torch.manual_seed(2)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    values = []
    for number in range(5):
        optimizer.zero_grad()
        value = step(*batch(number))
        value.backward()
        optimizer.step()
        values.append(value.detach())
    return [torch.stack(values), torch.rand(3), *(p.detach() for p in net.parameters())]


LOSSES = {
    "contrastive": (ContrastiveLoss, None),
    "cbml": (CBMLLoss, None),
    "mined": (TiledMultiSimilarityLoss, MultiSimilarityMiner()),
    "memory": (lambda: CrossBatchMemory(CBMLLoss(), 16, 96), None),
}


@pytest.mark.parametrize("micro_batch", [8, 20])
@pytest.mark.parametrize("name", LOSSES)
def test_five_steps_are_those_of_the_whole_batch(name, micro_batch):
    """The network's micro-batches draw dropout one after the other, and the same again in the backward pass."""
    make, miner = LOSSES[name]
    whole, cut = network(), network()
    loss, step = make(), CachedGradients(cut, make(), micro_batch, miner=miner)

    def plain(images, labels):
        embeddings = torch.cat([whole(part) for part in images.split(micro_batch)])
        mined = {} if miner is None else {"indices_tuple": miner(embeddings, labels)}
        return loss(embeddings, labels, **mined)

    torch.testing.assert_close(train(cut, step), train(whole, plain), rtol=1e-9, atol=1e-11)


def test_peak_memory():
    """0.14 of the whole batch's, 256 images of 28 x 28 in micro-batches of 32."""
    first, second = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
    kept = nn.ReLU(), nn.Dropout(0.2)
    net = nn.Sequential(first, *kept, nn.MaxPool2d(2), second, *kept, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    images, labels = torch.randn(256, 1, 28, 28, requires_grad=True), torch.arange(256) // 4
    cut, whole = CachedGradients(net, CBMLLoss(), 32), lambda x, y: CBMLLoss()(net(x), y)
    assert peak_bytes(cut, images, labels) < 0.2 * peak_bytes(whole, images, labels)


def test_batch_norm_is_told_and_counts_a_batch_once():
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8)).double()
    step = CachedGradients(net, CBMLLoss(), 16)
    with pytest.warns(TrainingWarning, match="statistics come from micro-batches of 16; freeze it"):
        step(*batch()).backward()
    assert net[2].num_batches_tracked == 3
    before = net[2].running_mean.clone()
    net.eval()
    step(*batch()).backward()
    torch.testing.assert_close(net[2].running_mean, before)


def test_inputs_are_no_embeddings():
    with pytest.raises(TypeError, match=r"loss of CachedGradients must be an object .* got 'cbml'"):
        CachedGradients(network(), "cbml", 8)
    assert registry.capabilities(CachedGradients(network(), CBMLLoss(), 8)) == frozenset()


@pytest.mark.parametrize("micro_batch", [1, 2, 64])
@pytest.mark.parametrize(
    "inputs",
    [
        {"pixels": torch.ones(4, 3), "mask": torch.ones(4, 3)},
        (torch.ones(4, 3), torch.ones(4, 3)),
        [torch.ones(3)] * 4,
        np.ones((4, 3)),
        torch.tensor(1.0),
    ],
    ids=["dict", "tuple", "list", "array", "number"],
)
def test_inputs_that_cannot_be_split(inputs, micro_batch):
    """The length of a dictionary is its number of keys, so that the whole batch went through at once."""
    step = CachedGradients(nn.Linear(3, 2), ContrastiveLoss(), micro_batch)
    with pytest.raises(TypeError, match=r"one tensor of inputs of shape \(batch size, ...\); got"):
        step(inputs, torch.arange(4) // 2)


class Returns(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.outputs = outputs

    def forward(self, x):
        return self.outputs(x)


@pytest.mark.parametrize("micro_batch", [2, 64])
@pytest.mark.parametrize("outputs", [lambda x: {"embeddings": x}, lambda x: (x, x)], ids=["dict", "tuple"])
def test_outputs_that_are_no_tensor(outputs, micro_batch):
    step = CachedGradients(Returns(outputs), ContrastiveLoss(), micro_batch)
    with pytest.raises(TypeError, match="must return one tensor of embeddings; got .* from Returns"):
        step(torch.ones(4, 3, requires_grad=True), torch.arange(4) // 2)
