"""The equations of densities, against loops."""

import pytest
import torch

from pml_ext_density import functional

from .points import RAGGED, batch


def test_slots_of_a_gpu_have_their_classes(monkeypatch):
    """In the form without a shape that depends on the labels, which a CPU takes while compiling."""
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    classes = torch.tensor([3, 0, 3, 0, 0, 1, 3])
    slots = functional.slots(classes, torch.float64)
    assert torch.equal(slots.classes[slots.class_index], classes)
    assert slots.counts[:3].tolist() == [3, 1, 3]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_densities_of_half_precision(dtype):
    """In float16 a count of 2,049 images would be 2,048, and in bfloat16 a count of 257 would be 256."""
    x = torch.randn(2049, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    labels = torch.zeros(2049, dtype=torch.long)
    found = functional.class_densities(x, labels)
    torch.testing.assert_close(found, functional.class_densities(x.float(), labels))


@pytest.mark.parametrize("size", [1, 4, 9])
def test_streamed_densities_are_those_of_all_features(size):
    x, y = batch(RAGGED, dtype=torch.float32)
    batches = ((x[i : i + size].detach(), y[i : i + size]) for i in range(0, 9, size))
    found = functional.streamed_class_densities(batches, lambda labels: labels, 5)
    expected = functional.class_densities(x.detach().double(), y)
    torch.testing.assert_close(found[[0, 1, 3]], expected, rtol=1e-6, atol=1e-7)
    assert found[[2, 4]].tolist() == [0, 0]  # without images
    assert found.dtype == torch.float64


@pytest.mark.parametrize("tile_size", [None, 2])
def test_nearest_distances_are_those_of_a_loop(tile_size):
    x, _ = batch(RAGGED)
    with torch.no_grad():
        x[4] = x[2]
    found = functional.nearest_distances(x, tile_size)
    expected = [min((p - q).norm().item() for j, q in enumerate(x) if j != i) for i, p in enumerate(x)]
    assert found.tolist() == pytest.approx(expected, abs=1e-9)
    assert found[2] == found[4] == 0
    (gradient,) = torch.autograd.grad(found[2] + found[4], x)
    assert not gradient.any()
