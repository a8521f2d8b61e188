"""Indexes by faiss: their effort, their recall, and factory strings that do not fit."""

import json
import warnings

import pytest
import torch

from pml_ext.errors import ConfigError
from pml_ext.retrieval import SkippedImage

pytest.importorskip("faiss")

SIZE = 64


def clustered(count, classes, spread, seed):
    """Points on a sphere around centers, as embeddings are; the centers are the same for every seed."""
    centers = torch.nn.functional.normalize(torch.randn(classes, SIZE, generator=torch.Generator().manual_seed(0)))
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(count, SIZE, generator=generator) * spread / SIZE**0.5
    return torch.nn.functional.normalize(centers[torch.randint(classes, (count,), generator=generator)] + noise)


def recall(run, gallery, queries, k=10, **settings):
    """Against a plain matrix of distances."""
    exact = torch.cdist(queries, gallery.embedded.embeddings).topk(k, largest=False).indices
    right = 0
    for answer, numbers in zip(run.query(queries, k, gallery, **settings), exact.tolist(), strict=True):
        right += len(set(answer.paths) & {gallery.embedded.paths[number] for number in numbers})
    return right / (k * len(queries))


@pytest.mark.parametrize("factory", ["Flat", "IVF4,Flat", "HNSW16"])
def test_factories(indexed, folder, tmp_path, factory):
    run, exact = indexed
    with pytest.warns(SkippedImage):
        gallery = run.index(folder, tmp_path / "index", factory)
    query = folder / exact.embedded.paths[0]
    found, expected = run.query(query, 8, gallery)[0], run.query(query, 8, exact)[0]
    if factory == "Flat":
        assert found.paths == expected.paths
    assert len(set(found.paths) & set(expected.paths)) >= 4
    assert found.distances[0] == pytest.approx(expected.distances[0], abs=1e-3)


@pytest.mark.parametrize(("classes", "spread"), [(100, 1.5), (3000, 1.0)])
def test_the_default_of_an_index_by_lists_finds_nine_of_ten(runs_one, folder, tmp_path, made_up, classes, spread):
    run = runs_one
    made_up(clustered(10_000, classes, spread, seed=1))
    gallery = run.gallery(run.index(folder, tmp_path / "index", "IVF64,Flat").place)
    assert recall(run, gallery, clustered(100, classes, spread, seed=2)) >= 0.9
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [len(answer.paths) for answer in run.query(clustered(5, classes, spread, 3), 100, gallery)] == [100] * 5


def test_a_graph_finds_nine_of_ten_and_as_many_as_are_asked_for(runs_one, folder, tmp_path, made_up):
    made_up(clustered(3000, 3000, 1.0, seed=1))
    gallery = runs_one.index(folder, tmp_path / "index", "HNSW16")
    queries = clustered(100, 3000, 1.0, seed=2)
    assert recall(runs_one, gallery, queries) >= 0.9
    assert [len(answer.paths) for answer in runs_one.query(queries[:3], 999, gallery)] == [999] * 3


def test_effort_is_searched_with_and_kept(runs_one, folder, tmp_path, made_up):
    made_up(clustered(2000, 1000, 1.0, seed=1))
    queries = clustered(50, 1000, 1.0, seed=2)
    with pytest.warns(UserWarning, match=r"index IVF64,Flat finds \d\d% of what exact .*; a greater --effort, or"):
        runs_one.index(folder, tmp_path / "index", "IVF64,Flat", effort=1)
    gallery = runs_one.gallery(tmp_path / "index")
    assert (gallery.faiss.effort, gallery.factory) == (1, "IVF64,Flat")
    little = recall(runs_one, gallery, queries)
    assert little < 0.6
    assert gallery.faiss.recall == pytest.approx(little, abs=0.15)
    assert little < recall(runs_one, gallery, queries, effort=16) < recall(runs_one, gallery, queries, effort=64) == 1


def test_codes_that_lose_too_much_take_the_least_effort_that_helps(runs_one, folder, tmp_path, made_up):
    """No effort reaches the target, and beyond some lists none finds more."""
    made_up(clustered(2000, 1000, 1.0, seed=1))
    with pytest.warns(UserWarning, match=r"IVF16,PQ4x4 finds \d\d% of what exact search finds; another --index, or"):
        gallery = runs_one.index(folder, tmp_path / "index", "IVF16,PQ4x4")
    recalls = {
        effort: recall(runs_one, gallery, gallery.embedded.embeddings[::10], effort=effort) for effort in (1, 16)
    }
    assert recalls[16] < 0.9
    assert gallery.faiss.recall > recalls[1] - 0.15
    assert gallery.faiss.effort < 16


def test_measured_recall_is_that_of_a_plain_count(runs_one, folder, tmp_path, made_up):
    points = clustered(400, 200, 1.0, seed=1)
    points[1::2] = points[::2]  # every image twice: several right answers
    made_up(points)
    for effort in (1, 4, 16):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gallery = runs_one.index(folder, tmp_path / "index", "IVF16,Flat", effort)
        distances = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
        distances.fill_diagonal_(torch.inf)
        right, sample = 0, torch.linspace(0, 399, 200).round().long().tolist()
        for row in sample:
            answers = [int(path[:5]) for path in runs_one.query(points[row][None], 11, gallery)[0].paths]
            answers = [number for number in answers if number != row][:10]
            right += int((distances[row, answers] <= distances[row].topk(10, largest=False).values[-1] + 1e-6).sum())
        assert gallery.faiss.recall == pytest.approx(right / 2000, abs=1e-3)


@pytest.mark.parametrize("factory", ["Flat", "IVF1,Flat", "HNSW8"])
def test_an_index_of_one_image_has_no_recall(runs_one, folder, tmp_path, made_up, factory):
    made_up(clustered(1, 1, 1.0, seed=0))
    gallery = runs_one.index(folder, tmp_path / "index", factory)
    assert gallery.faiss.recall is None
    assert len(runs_one.query(clustered(1, 1, 1.0, seed=1), 1, gallery)[0].paths) == 1


def test_the_command_tells_effort_and_recall(command, runs, folder, tmp_path):
    done = command("index", runs[1], folder, "--store", tmp_path / "index", "--index", "IVF8,Flat")
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == f"200 images indexed: {tmp_path / 'index'}"
    assert second.startswith("IVF8,Flat with nprobe ")
    assert float(second.partition("recall@10 ")[2].split()[0]) >= 0.95
    query = next(folder.glob("5/*.png"))
    picture = ("--picture", tmp_path / "q.png")
    done = command("query", runs[1], query, "--store", tmp_path / "index", "-k", 199, "--json", *picture)
    assert len(json.loads(done.stdout)[0]["paths"]) == 199


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"factory": "nonsense"}, r"--index nonsense: faiss refuses it \(could not parse index string nonsense\)"),
        ({"factory": "PQ7"}, "--index PQ7: faiss refuses it .*multiple of the number of subquantizers"),
        ({"factory": "IVF0,Flat"}, "--index IVF0,Flat: faiss refuses it"),
        ({"factory": "HNSW0"}, "--index HNSW0: faiss refuses it"),
        ({"factory": "IDMap,Flat"}, "--index IDMap,Flat: images are numbered without IDMap"),
        ({"factory": "Flat", "effort": 4}, "--effort 4: the index Flat has no nprobe and no efSearch"),
        ({"factory": "IVF4,Flat", "effort": 0}, "--effort 0: wanted 1 or more"),
        ({"effort": 4}, "--effort 4: the index would be searched exactly; leave out --effort"),
    ],
)
def test_factories_and_efforts_that_are_refused_before_a_folder_is_embedded(
    indexed, folder, tmp_path, monkeypatch, settings, text
):
    run, _ = indexed
    monkeypatch.setattr(run, "embed_folder", lambda _: pytest.fail("embedded"))
    with pytest.raises(ConfigError, match=text):
        run.index(folder, tmp_path / "index", **settings)
    assert not (tmp_path / "index").exists()


def test_a_factory_that_faiss_refuses_when_it_trains(indexed, folder, tmp_path):
    with (
        pytest.warns(SkippedImage),
        pytest.raises(ConfigError, match=r"--index RQ2x8: faiss refuses it for 200 images"),
    ):
        indexed[0].index(folder, tmp_path / "index", "RQ2x8")
    assert not (tmp_path / "index").exists()


def test_the_index_that_is_chosen_where_none_is_asked_for(runs_one, folder, tmp_path, made_up, monkeypatch):
    made_up(clustered(900, 50, 1.0, seed=1))
    monkeypatch.setattr("pml_ext.retrieval.search.MOST_EXACT", 899)
    place = tmp_path / "index"
    assert runs_one.index(folder, place).factory == "IVF30,Flat"
    assert runs_one.gallery(place).faiss.setting == "nprobe"
    assert runs_one.index(folder, place, "exact").factory == ""
    assert sorted(path.suffix for path in place.iterdir()) == [".f32", ".sqlite"]
    monkeypatch.setattr("pml_ext.retrieval.search.MOST_EXACT", 900)
    assert runs_one.index(folder, place).factory == ""
    monkeypatch.setattr("pml_ext.retrieval.search.MOST_EXACT", 899)
    monkeypatch.setattr("pml_ext.retrieval.search.has_faiss", lambda: False)
    assert runs_one.index(folder, place).factory == ""
