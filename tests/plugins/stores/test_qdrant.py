"""Qdrant, in a folder: many points, and their payloads."""

import numpy as np
import pytest

from pml_ext.errors import DataError
from pml_ext.plugin import Rows

from .opened import opened, rows

pytest.importorskip("qdrant_client", reason="needs the extra qdrant")
from pml_ext_stores import qdrant


@pytest.fixture
def store(tmp_path):
    return opened(f"qdrant:{tmp_path / 'points'}")


def test_points_are_sent_and_read_in_batches(store, monkeypatch):
    monkeypatch.setattr(qdrant, "_SENT", 7)
    monkeypatch.setattr(qdrant, "BATCH", 10)
    images = rows(45)
    sent = []
    store.write([])  # creates the collection
    upsert = store._client.upsert
    monkeypatch.setattr(store._client, "upsert", lambda title, batch: sent.append(batch.ids) or upsert(title, batch))
    store.write([images])
    assert [id for ids in sent for id in ids] == images.ids.tolist()
    assert [len(ids) for ids in sent] == [7] * 6 + [3]
    assert store.checksums() == dict(zip(images.ids.tolist(), images.checksums.tolist(), strict=True))
    assert store.count() == 45


def test_an_error_is_one_line_with_the_address(store, tmp_path):
    images = rows(3)
    store.write([images])
    wrong = Rows(images.ids, images.checksums, images.paths, images.classes, np.zeros((3, 5), dtype=np.float32))
    with pytest.raises(DataError, match=f"qdrant:{tmp_path / 'points'} failed") as caught:
        store.write([wrong])
    assert "\n" not in str(caught.value)
