"""Vectors on the disk by key: found, appended by several processes, and damaged."""

import multiprocessing

import numpy as np
import pytest
import torch
from torch import nn

from pml_ext_train.training.batch_norm import synchronize_batch_norm
from pml_ext_train.training.feature_store import FeatureStore, trunk_digest

from ...search.conftest import full

SIZE = 5


def rows(first, count):
    """Rows that no other numbers have."""
    return np.arange(first * SIZE, (first + count) * SIZE, dtype=np.float32).reshape(count, SIZE)


def keys(first, count):
    return [f"{number}.png".encode() for number in range(first, first + count)]


def stats(count, size=10):
    return [(size, 1_700_000_000_000_000_000 + number) for number in range(count)]


@pytest.fixture
def store(tmp_path):
    return FeatureStore(tmp_path / "store", SIZE)


def test_unchanged_files_have_their_vectors(store):
    assert store.find(dict(zip(keys(0, 2), stats(2), strict=True))) == ({}, 0)
    assert store.vectors().shape == (0, SIZE)
    assert store.append(keys(0, 3), stats(3), rows(0, 3)) == dict(zip(keys(0, 3), range(3), strict=True))
    assert store.append(keys(3, 2), stats(2), rows(3, 2).astype(np.float64)) == {b"3.png": 3, b"4.png": 4}
    asked = dict(zip(keys(0, 6), [*stats(3), *stats(2), (1, 1)], strict=True))
    asked[b"1.png"] = (11, asked[b"1.png"][1])
    asked[b"2.png"] = (10, asked[b"2.png"][1] + 1)
    found, damaged = FeatureStore(store.folder, SIZE).find(asked)
    assert (found, damaged) == ({b"0.png": 0, b"3.png": 3, b"4.png": 4}, 0)
    assert np.array_equal(store.vectors(), rows(0, 5))


def test_what_a_killed_process_left_is_overwritten(store):
    store.append(keys(0, 2), stats(2), rows(0, 2))
    with (store.folder / "vectors.f32").open("ab") as file:
        file.write(b"half of a row")
    assert store.append(keys(2, 1), stats(1), rows(2, 1)) == {b"2.png": 2}
    assert np.array_equal(store.vectors(), rows(0, 3))


def test_failed_writes_leave_no_key(store, monkeypatch):
    store.append(keys(0, 1), stats(1), rows(0, 1))
    monkeypatch.setattr("pml_ext_train.training.feature_store.os.fsync", full)
    with pytest.raises(OSError, match=r"vectors.f32: cannot be written \(No space left on device\)"):
        store.append(keys(1, 1), stats(1), rows(1, 1))
    monkeypatch.undo()
    assert store.find({b"1.png": stats(1)[0]}) == ({}, 0)
    assert store.append(keys(1, 1), stats(1), rows(1, 1)) == {b"1.png": 1}


def append_some(folder, first):
    store = FeatureStore(folder, SIZE)
    for number in range(first, first + 20):
        store.append(keys(number, 1), stats(1), rows(number, 1))


def test_several_processes_append_at_once(store):
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=append_some, args=(store.folder, first)) for first in (0, 100)]
    for worker in workers:
        worker.start()
    append_some(store.folder, 200)
    for worker in workers:
        worker.join(100)
        assert worker.exitcode == 0
    asked = {key: stats(1)[0] for first in (0, 100, 200) for key in keys(first, 20)}
    found, damaged = store.find(asked)
    assert (sorted(found.values()), damaged) == (list(range(60)), 0)
    for first in (0, 100, 200):
        assert np.array_equal(store.vectors()[[found[key] for key in keys(first, 20)]], rows(first, 20))


def batch_norms():
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.BatchNorm2d(4), nn.Flatten())


def timm_batch_norms():
    layers = pytest.importorskip("timm.layers", reason="the extra timm is not installed")
    return nn.Sequential(layers.BatchNormAct2d(4), nn.Flatten())


@pytest.mark.parametrize("build", [batch_norms, timm_batch_norms])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_joined_batch_norms_keep_the_digest(build, device):
    trunk = build()
    plain = trunk_digest(trunk, "steps")
    joined = synchronize_batch_norm(trunk, torch.device(device))
    assert "Sync" in str(joined) or "Joined" in str(joined)
    assert trunk_digest(joined, "steps") == plain
    assert trunk_digest(joined, "other steps") != plain
