"""State as tensors, numbers, texts and tables: what goes in comes out, without pickled code."""

import collections
import random

import numpy as np
import pytest
import torch

from pml_ext.errors import PluginWarning
from pml_ext.experiment.plain import UnplainError, attributes, from_plain, to_plain


def through_a_file(value, path):
    torch.save(to_plain(value), path)
    return from_plain(torch.load(path, weights_only=True))


def same(one, other):
    if isinstance(one, np.ndarray):
        return type(other) is np.ndarray and one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        1 << 127,
        0.1,
        float("-inf"),
        "text",
        b"bytes",
        [],
        (),
        (1, [2, (3,)]),
        {1, 2},
        {},
        range(2, 9, 3),
        {"a": 1, 2: "b"},
        {(1, 2): 3, True: None, 0.5: 1},
        {"__kind__": "tuple", "items": [1]},
        torch.arange(3),
        np.arange(6, dtype=np.uint32).reshape(2, 3),
        np.zeros((0, 2)),
        np.array(["a", "bc"]),
        np.float32(0.1),
        np.int64(7),
        np.bool_(True),
        np.array(True),
        collections.Counter({3: 2}),
        collections.deque([1, 2], 5),
        torch.Size([2, 3]),
        np.random.get_state(),
        random.getstate(),
        np.random.default_rng(3).bit_generator.state,
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_goes_in_comes_out(tmp_path, value):
    assert same(through_a_file({"value": value}, tmp_path / "x.pt")["value"], value)


@pytest.mark.parametrize(
    ("make", "draw"),
    [
        *(
            (lambda kind=kind: np.random.Generator(kind(5)), lambda made: made.random())
            for kind in (np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64, np.random.PCG64DXSM)
        ),
        (lambda: np.random.RandomState(5), lambda made: made.normal()),
        (lambda: random.Random(5), lambda made: made.gauss(0, 1)),
        (lambda: torch.Generator().manual_seed(5), lambda made: torch.rand(3, generator=made).tolist()),
    ],
)
def test_generators_go_on(tmp_path, make, draw):
    one = make()
    draw(one)
    made, again = through_a_file([one, one], tmp_path / "x.pt")
    assert made is again
    assert [draw(made) for _ in range(3)] == [draw(one) for _ in range(3)]


def test_the_versions_of_a_modules_state_are_kept(tmp_path):
    state = torch.nn.BatchNorm1d(3).state_dict()
    again = through_a_file({"state": state}, tmp_path / "x.pt")["state"]
    assert again._metadata == state._metadata
    assert type(again) is type(state)


class Odd:
    def __init__(self):
        self.pool, self.read = [1, 2], open


def test_what_no_file_may_hold_is_named():
    with pytest.raises(UnplainError, match=r"stages\[1\].sampler.read \(a builtin_function_or_method\)"):
        to_plain({"stages": [1, {"sampler": vars(Odd())}]})
    with pytest.raises(UnplainError, match="an unknown kind of value, 'os.system'"):
        from_plain({"__kind__": "os.system", "of": "true"})
    with pytest.warns(PluginWarning, match=r"Odd: checkpoints leave out its read, .*a state_dict\(\)"):
        assert attributes(Odd()) == {"pool": [1, 2]}
