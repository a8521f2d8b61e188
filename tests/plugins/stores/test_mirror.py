"""A store that mirrors an index: what is copied, and how well it searches."""

from pathlib import Path

import numpy as np
import pytest
import torch

from pml_ext.errors import ConfigError, PluginError, UnknownNameError
from pml_ext_search.collection.embedded import Embedded
from pml_ext_stores import mirror
from pml_ext_stores.mirror import MirroredStore
from pml_ext_stores.validation import CheckedStore

from .careless import Lines


def index_of(count):
    points = torch.nn.functional.normalize(torch.randn(50, 6, generator=torch.Generator().manual_seed(0)))
    paths = [f"{number % 3}/{number:02d}.png" for number in range(count)]
    stats = np.ones((count, 2), dtype=np.int64)
    return Embedded(Path("photos"), paths, points[:count], stats=stats, ids=np.arange(count) + 100)


@pytest.fixture
def store(tmp_path):
    return Lines(str(tmp_path), "table", 6)


def test_only_what_differs_is_written(store, monkeypatch):
    monkeypatch.setattr("pml_ext_stores.mirror.BATCH", 20)
    checked = MirroredStore(CheckedStore(store, "the store"), "")
    sizes = []
    write = store.write
    monkeypatch.setattr(store, "write", lambda rows: write(sizes.append(len(each.ids)) or each for each in rows))
    assert tuple(checked.update(index_of(45))) == (45, 0, 0, 0)
    assert sizes == [20, 20, 5]
    assert tuple(checked.update(index_of(45))) == (0, 0, 0, 45)
    changed = index_of(50)
    changed.stats[3] = 7
    assert tuple(checked.update(changed)) == (5, 1, 0, 44)
    assert tuple(checked.update(index_of(10))) == (0, 1, 40, 9)
    assert sorted(store.rows) == list(range(100, 110))
    monkeypatch.setattr(store, "delete", lambda ids: None)
    with pytest.raises(PluginError, match="the store has 10 images after write and delete, of 9 in the index"):
        checked.update(index_of(9))


def test_the_recall_is_against_exact_search(store, monkeypatch):
    index = index_of(50)
    checked = MirroredStore(CheckedStore(store, "the store"), "")
    checked.update(index)
    assert checked.recall_at_10(index) == 1
    assert checked.recall_at_10(index_of(1)) is None
    search = store.search
    monkeypatch.setattr(store, "search", lambda *given: [found[::2] for found in search(*given)])
    assert 0.2 < checked.recall_at_10(index) < 0.8
    with pytest.raises(PluginError, match="the id 1..; wanted an id that was written"):
        checked.recall_at_10(index_of(20))


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("photos", "photos: wanted SCHEME:ADDRESS, with one of lancedb:, pgvector:, qdrant:"),
        ("lancd:photos", "no store 'lancd'; nearest: lancedb"),
    ],
)
def test_an_address_has_a_known_scheme(address, text):
    with pytest.raises((ConfigError, UnknownNameError), match=text):
        mirror.open(address, "0123", 6)
