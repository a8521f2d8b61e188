"""Counts of made-up sets."""

import dataclasses

import pytest

from pml_ext_train.data import image_sets
from pml_ext_train.data.published import Count

COUNTS = {"train": Count(6, 2), "test": Count(6, 2)}


@pytest.fixture
def count(monkeypatch):
    """Makes other counts the published ones of a set."""

    def replace(name, counts=COUNTS, module=image_sets):
        monkeypatch.setattr(module, name, dataclasses.replace(getattr(module, name), counts=counts))

    return replace
