"""The equations of densities, against loops."""

import pytest
import torch

from pml_ext_density import functional


def test_slots_of_a_gpu_have_their_classes(monkeypatch):
    """In the form without a shape that depends on the labels, which a CPU takes while compiling."""
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    classes = torch.tensor([3, 0, 3, 0, 0, 1, 3])
    slots = functional.slots(classes, torch.float64)
    assert torch.equal(slots.classes[slots.class_index], classes)
    assert slots.counts[:3].tolist() == [3, 1, 3]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_densities_equal_full_precision(dtype):
    """In float16 a count of 2,049 images would be 2,048, and in bfloat16 a count of 257 would be 256."""
    x = torch.randn(2049, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    labels = torch.zeros(2049, dtype=torch.long)
    found = functional.class_densities(x, labels)
    torch.testing.assert_close(found, functional.class_densities(x.float(), labels))
