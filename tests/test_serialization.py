"""Values of checkpoints in types that torch reads."""

import collections
import io

import numpy as np
import pytest
import torch

from pml_ext.serialization import from_plain, to_plain


def written_and_read(value):
    file = io.BytesIO()
    torch.save(to_plain(value), file)
    file.seek(0)
    return from_plain(torch.load(file, weights_only=True))


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6, dtype=np.uint32).reshape(2, 3),
        np.zeros((0, 4)),
        np.array(2.5, dtype=np.float32),
        np.array(["a", "bcd"]),
        np.array([1.5, np.nan, -np.inf], dtype=np.float16),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
    ],
)
def test_arrays_are_restored_with_type_and_shape(value):
    read = written_and_read({"a": [value]})["a"][0]
    assert (read.dtype, read.shape) == (value.dtype, value.shape)
    np.testing.assert_array_equal(read, value)
    assert read.flags.writeable


def test_containers_of_numpy_values_are_restored():
    value = {
        "range": range(1, 9, 2),
        "frozen": frozenset({"a", "b"}),
        "seen": {np.int64(3), 4},
        "members": collections.defaultdict(list, {np.int64(3): [1]}),
        "pair": (None, {"deep": range(2)}),
        "counter": collections.Counter("aab"),
    }
    assert written_and_read(value) == value
