"""Rows of inputs in every form."""

from collections import UserDict, namedtuple

import numpy as np
import pytest
import torch

from pml_ext.losses.splitting import number_of_rows, rows_of

Pair = namedtuple("Pair", "left right")
X = torch.arange(12).reshape(6, 2)


@pytest.mark.parametrize(
    ("inputs", "part"),
    [
        (X, X[2:4]),
        (X.numpy(), X[2:4].numpy()),
        (list("abcdef"), ["c", "d"]),
        ((X, list("abcdef"), None), (X[2:4], ["c", "d"], None)),
        (Pair(X, X + 1), Pair(X[2:4], X[2:4] + 1)),
        ({"x": X, "deep": {"y": X.numpy()}, "scale": 2.0, "of": torch.tensor(3)}, None),
        (UserDict(x=X, text="all"), {"x": X[2:4], "text": "all"}),
    ],
)
def test_rows_keep_their_form_when_split(inputs, part):
    assert number_of_rows(inputs) == number_of_rows(inputs, 6) == 6
    found = rows_of(inputs, 2, 4)
    if part is None:
        part = {"x": X[2:4], "deep": {"y": X[2:4].numpy()}, "scale": 2.0, "of": torch.tensor(3)}
    assert type(found) is type(part)
    assert repr(found) == repr(part)


@pytest.mark.parametrize(
    ("inputs", "error", "text"),
    [
        (torch.tensor(1.0), TypeError, r"must be a tensor or array .*; got a tensor of shape \(\)"),
        ("text", TypeError, "got a str"),
        (None, TypeError, "got a NoneType"),
        ({}, TypeError, "got a dict"),
        ({"scale": 1.0}, TypeError, "got a dict"),
        (iter("abc"), TypeError, "got a str_ascii_iterator"),
        ({"x": X, "deep": [X], "odd": {1, 2}}, TypeError, r"got a set in \['odd'\]"),
        ({"x": X, "mask": X[:4]}, ValueError, r"got rows: \['x'\] 6, \['mask'\] 4"),
        ((X, {"y": X[:1]}), ValueError, r"got rows: \[0\] 6, \[1\]\['y'\] 1"),
        ([X, X], TypeError, "a list of 2 tensors of 6 rows each may be 2 rows or 2 inputs; type tuple"),
        ([np.ones(6), np.ones(6)], TypeError, "may be 2 rows or 2 inputs"),
    ],
)
def test_inputs_that_cannot_be_split(inputs, error, text):
    with pytest.raises(error, match=text):
        number_of_rows(inputs)


def test_labels_say_what_a_list_is():
    assert number_of_rows([X, X], 2) == 2
    with pytest.raises(ValueError, match=r"6 labels need 6 rows of inputs; got 2; .* type tuple\(...\)"):
        number_of_rows([X, X], 6)
