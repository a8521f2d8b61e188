"""A store that mirrors an index: what is copied, and how well it searches."""

from pathlib import Path

import numpy as np
import pytest
import torch

from pml_ext.errors import ConfigError, PluginError, UnknownNameError
from pml_ext.plugin import SearchResult
from pml_ext_search.embedded import Embedded
from pml_ext_stores import mirror
from pml_ext_stores.mirror import copy_to_store, recall_of
from pml_ext_stores.validation import CheckedStore


class InMemory:
    """A store in a dictionary that searches all rows; ``batches`` are the sizes of its writes."""

    def __init__(self):
        self.rows = {}
        self.batches = []

    def write(self, rows):
        for batch in rows:
            self.batches.append(len(batch.ids))
            for id, *row in zip(batch.ids.tolist(), *batch[1:], strict=True):
                self.rows[id] = row

    def delete(self, ids):
        for id in ids:
            self.rows.pop(id, None)

    def count(self):
        return len(self.rows)

    def checksums(self):
        return {id: int(row[0]) for id, row in self.rows.items()}

    def search(self, vectors, k, where):
        answers = []
        for vector in vectors:
            found = []
            for id, (_, path, class_name, point) in self.rows.items():
                if where.within in (None, class_name):
                    found.append(SearchResult(id, path, class_name, float(np.linalg.norm(vector - point))))
            answers.append(sorted(found, key=lambda result: result.distance)[:k])
        return answers


def index_of(count):
    points = torch.nn.functional.normalize(torch.randn(50, 6, generator=torch.Generator().manual_seed(0)))
    paths = [f"{number % 3}/{number:02d}.png" for number in range(count)]
    stats = np.ones((count, 2), dtype=np.int64)
    return Embedded(Path("photos"), paths, points[:count], stats=stats, ids=np.arange(count) + 100)


@pytest.fixture
def store():
    return InMemory()


def test_only_what_differs_is_written(store, monkeypatch):
    monkeypatch.setattr("pml_ext_stores.mirror.BATCH", 20)
    checked = CheckedStore(store, "the store")
    assert tuple(copy_to_store(index_of(45), checked)) == (45, 0, 0, 0)
    assert store.batches == [20, 20, 5]
    assert tuple(copy_to_store(index_of(45), checked)) == (0, 0, 0, 45)
    changed = index_of(50)
    changed.stats[3] = 7
    assert tuple(copy_to_store(changed, checked)) == (5, 1, 0, 44)
    assert tuple(copy_to_store(index_of(10), checked)) == (0, 1, 40, 9)
    assert sorted(store.rows) == list(range(100, 110))
    monkeypatch.setattr(store, "delete", lambda ids: None)
    with pytest.raises(PluginError, match="the store has 10 images after write and delete, of 9 in the index"):
        copy_to_store(index_of(9), checked)


def test_the_recall_is_against_exact_search(store, monkeypatch):
    index = index_of(50)
    checked = CheckedStore(store, "the store")
    copy_to_store(index, checked)
    assert recall_of(index, checked) == 1
    assert recall_of(index_of(1), checked) is None
    search = store.search
    monkeypatch.setattr(store, "search", lambda *given: [found[::2] for found in search(*given)])
    assert 0.2 < recall_of(index, checked) < 0.8
    with pytest.raises(PluginError, match="the id 1..; wanted an id that was written"):
        recall_of(index_of(20), checked)


def test_an_address_has_a_known_scheme():
    with pytest.raises(ConfigError, match="photos: wanted SCHEME:ADDRESS, with one of lancedb:, pgvector:, qdrant:"):
        mirror.open("photos", "0123", 6)
    with pytest.raises(UnknownNameError, match="no store 'lancd'; nearest: lancedb"):
        mirror.open("lancd:photos", "0123", 6)
