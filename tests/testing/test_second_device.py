"""The second device: what runs there gives what the CPU gives, a mix is refused, and what waits is counted."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from pml_ext.testing import SecondDevice
from pml_ext.testing.second_device import OtherDeviceError


def operations(device):
    """What losses do, and what makes tensors of Python's numbers."""
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).to(device)
    rows = torch.arange(4, device=device)
    mask = x > 0
    made = {"device": device}
    yield from (torch.tensor([1.0, 2.0], **made), torch.as_tensor(np.ones(3), **made), torch.tensor([x[0, 0], x[1, 1]]))
    yield from (x.new_tensor([4.0, 5.0]), x.new_full((2,), 3.0), torch.eye(2, **made), torch.ones((), **made) * 3)
    yield from (x[[0, 1], [1, 2]], x[np.array([0, 2])], x[:, [True, False, True]], x[torch.tensor([1, 2])], x[mask])
    yield from (x[1:3, None], x[..., 0], x[rows % 2 == 0], x.index_select(0, rows), torch.where(mask, 1.0, x))
    for index, value in ((0, 1.5), (mask, 2), (slice(1, 3), 0), ((0, 1), torch.tensor(7.0)), (([0, 1], [1, 2]), 5)):
        changed = x.clone()
        changed[index] = value
        yield changed
    yield from (x.masked_fill(mask, 3.0), x.clone().fill_diagonal_(9), x @ x.T, 1 - x**2, torch.cdist(x, x))
    yield from (F.normalize(x), x.logsumexp(1), x.topk(2).values, x.to(torch.float64), x.half(), x.type(torch.long))
    yield from (F.cross_entropy(x, rows % 3), torch.unique(rows % 2), torch.stack([*x.unbind()]), copy.deepcopy(x))
    yield from (torch.einsum("ij,kj->ik", x, x), torch.bincount(rows % 3), x.scatter(0, rows[None, :3], 8.0))
    leaf = x.clone().requires_grad_()
    again = checkpoint(F.softplus, leaf, use_reentrant=False)
    (leaf.square().sum() + leaf[[0, 1]].sum() + again.sum()).backward()
    yield leaf.grad


def test_gives_what_the_cpu_gives():
    expected = list(operations("cpu"))
    with SecondDevice() as second:
        found = list(operations(second.device))
        assert sum(tensor.device == second.device for tensor in found) == len(found) - 1  # one was made of its numbers
        for number, (mine, wanted) in enumerate(zip(found, expected, strict=True)):
            assert torch.equal(mine.cpu(), wanted), number


def test_mixed_devices_raise_but_copies_do_not():
    with SecondDevice() as second:
        x = torch.ones(3, 2).to(second.device)
        for mix in (
            lambda: x + torch.zeros(3, 1),
            lambda: torch.where(x > 0, torch.zeros(3, 2), x),
            lambda: torch.zeros(3)[torch.zeros(1, dtype=torch.long, device=second.device)],
            lambda: torch.cat([x, torch.zeros(1, 2)]),
            lambda: torch.zeros(3, 2).add_(x),
        ):
            text = r"at test_second_device.py:\d+ mixes a tensor of shape \(.*\) on the CPU .* device=embeddings.device"
            with pytest.raises(OtherDeviceError, match=text):
                mix()
        assert (x * torch.tensor(2.0)).sum().item() == 12  # of no dimension
        x.copy_(torch.zeros(3, 2))
        assert torch.zeros(3, 2).copy_(x).device.type == "cpu"
        with pytest.raises(TypeError, match=r"call .cpu\(\) first"):
            x.numpy()
    with pytest.raises(OtherDeviceError, match="after the second device was left"):
        x + 1


def test_waits_of_the_host_are_counted_by_place():
    with SecondDevice() as second:
        x = torch.ones(3, 2).to(second.device)
        (x + x[0] * torch.arange(2, device=x.device)).sum().abs()
        assert not second.waits
        assert not second.shapes
        _ = x.sum().item(), bool(x[0, 0] > 0), float(x[0, 0]), x.tolist(), x.cpu()
        assert sorted(what.split(" at ")[0] for what in second.waits) == ["a copy to the CPU", "a value read"]
        assert all(what.rpartition(":")[0].endswith("test_second_device.py") for what in second.waits)
        assert sum(second.waits.values()) == 5
        _ = x.nonzero(), x[x > 0], torch.unique(x)
        assert [what.split(" at ")[0] for what in second.shapes] == ["nonzero", "a boolean index", "unique"]
        second.clear()
        assert not second.waits
        x.to("cpu", non_blocking=True)
        assert not second.waits


def test_a_module_moves_with_what_knows_its_parameters():
    class Known(nn.Linear):
        def __init__(self):
            super().__init__(2, 2)
            self.known = [self.weight]
            self.register_buffer("ones", torch.ones(2))

    module = Known()
    with SecondDevice() as second:
        moved = second.move(module)
        assert moved.known[0] is moved.weight
        moved(torch.ones(1, 2).to(second.device) + moved.ones).sum().backward()
        assert moved.weight.grad.device == moved.ones.device == second.device
        assert torch.equal(moved.weight.grad.cpu(), torch.full((2, 2), 2.0))
    assert module.weight.device.type == "cpu"
    assert not torch.__future__.get_swap_module_params_on_conversion()
