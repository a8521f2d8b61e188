"""Indexes by faiss: their effort, their recall, and factory strings that do not fit."""

import warnings

import pytest
import torch

from pml_ext_search.query.query import QueryOptions

from ..conftest import made_up

pytest.importorskip("faiss")

SIZE = 64


def clustered(count, classes, spread, seed):
    """Points on a sphere around centers, as embeddings are; the centers are the same for every seed."""
    centers = torch.nn.functional.normalize(torch.randn(classes, SIZE, generator=torch.Generator().manual_seed(0)))
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(count, SIZE, generator=generator) * spread / SIZE**0.5
    return torch.nn.functional.normalize(centers[torch.randint(classes, (count,), generator=generator)] + noise)


def recall(gallery, queries, k=10):
    """Against a plain matrix of distances."""
    exact = torch.cdist(queries, gallery.embedded.embeddings).topk(k, largest=False).indices
    right = 0
    for answer, numbers in zip(answers(gallery, queries, k), exact.tolist(), strict=True):
        right += len(set(answer.paths) & {gallery.embedded.paths[number] for number in numbers})
    return right / (k * len(queries))


def answers(gallery, queries, k):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the indexed folder")
        return gallery.answer([""] * len(queries), queries, QueryOptions(k))


@pytest.mark.parametrize(
    ("factory", "count", "classes", "spread", "k"),
    [
        ("IVF64,Flat", 10_000, 100, 1.5, 100),
        ("IVF64,Flat", 10_000, 3000, 1.0, 100),
        ("HNSW16", 3000, 3000, 1.0, 999),
        ("Flat", 1000, 100, 1.5, 999),
    ],
)
def test_the_default_effort_finds_nine_of_ten(make, factory, count, classes, spread, k):
    gallery = made_up(make(), clustered(count, classes, spread, seed=1), factory)
    queries = clustered(100, classes, spread, seed=2)
    assert recall(gallery, queries) >= 0.9
    assert [len(answer.paths) for answer in answers(gallery, queries[:5], k)] == [k] * 5


def test_the_command_tells_effort_and_recall(command, runs, folder, tmp_path):
    done = command("index", runs[1], folder, "--store", tmp_path / "index", "--index", "IVF8,Flat")
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == f"200 images indexed: {tmp_path / 'index'}"
    assert second.startswith("IVF8,Flat with nprobe ")
    assert float(second.partition("recall@10 ")[2].split()[0]) >= 0.95


def test_the_default_index_depends_on_the_size(make, tmp_path, monkeypatch):
    points = clustered(900, 50, 1.0, seed=1)
    monkeypatch.setattr("pml_ext_search.collection.faiss_index.MOST_EXACT", 899)
    gallery = made_up(make(), points)
    assert (gallery.factory, gallery.faiss.setting) == ("IVF30,Flat", "nprobe")
    assert made_up(make("other"), points, "exact").factory == ""
    assert sorted(path.suffix for path in (tmp_path / "other").iterdir()) == [".f32", ".sqlite"]
    monkeypatch.setattr("pml_ext_search.collection.faiss_index.MOST_EXACT", 900)
    assert made_up(make("third"), points).factory == ""
    monkeypatch.setattr("pml_ext_search.collection.faiss_index.MOST_EXACT", 899)
    monkeypatch.setattr("pml_ext_search.collection.faiss_index.has_faiss", lambda: False)
    assert made_up(make("fourth"), points).factory == ""
