"""Queries: the nearest images of an index, within a class or a radius; what a query imports."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from pytorch_metric_learning.distances import LpDistance

import pml_ext
from pml_ext import load_run
from pml_ext.errors import ConfigError, DataError
from pml_ext.plugin import SearchResult
from pml_ext_search.collection.state import Image
from pml_ext_search.embedding.embedding import SkippedImage
from pml_ext_search.query.query import QueryOptions, answers_of
from pml_ext_train.launch.launch import train

from ....overrides import typed
from ..conftest import made_up
from ..drawings import write_some


def test_queries_find_their_class_and_not_themselves(indexed, folder):
    run, _ = indexed
    queries = sorted(folder.glob("*/*.png"))[::20]
    queries = [query for query in queries if query.name != "broken.png"]
    answers = run.query(queries, k=5)
    assert [answer.query for answer in answers] == [str(query) for query in queries]
    right = total = 0
    for answer, query in zip(answers, queries, strict=True):
        assert len(answer.paths) == len(answer.distances) == 5
        assert answer.distances == sorted(answer.distances)
        assert query.relative_to(folder).as_posix() not in answer.paths
        assert answer.query_class == query.parent.name
        points = run.embed([query, *(folder / path for path in answer.paths)])
        expected = (points[1:] - points[0]).norm(dim=1)
        assert answer.distances == pytest.approx(expected.tolist(), abs=2e-3)
        right += sum(name == query.parent.name for name in answer.classes)
        total += 5
    assert right / total > 0.8


def test_fewer_answers_than_k_are_warned_of(command, indexed, folder):
    run, gallery = indexed
    unknown = torch.zeros(1, 8, 8, dtype=torch.uint8)
    with pytest.warns(UserWarning, match=r"fewer than 1000 answers for 1 of 1 queries: the index holds 200 images"):
        (answer,) = run.query([unknown], k=1000)
    assert len(answer.paths) == 200
    assert (answer.query, answer.query_class) == ("image 0", None)
    done = command("query", run.folder, folder / gallery.embedded.paths[0], "-k", 200, "--json")
    assert (done.returncode, len(json.loads(done.stdout)[0]["paths"])) == (0, 199)
    assert "pml-ext: warning: fewer than 200 answers" in done.stderr


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"k": 0}, "-k 0"),
        ({"radius": float("nan")}, "--radius nan: wanted a distance above 0"),
        ({"metric": "learned"}, "has no learned metric: its loss is batch-all-triplets"),
        ({"shortlist": 5}, "--shortlist 5: wanted 1 or more, with --metric learned"),
    ],
)
def test_wrong_options_of_queries_are_refused(indexed, folder, settings, text):
    with pytest.raises(ConfigError, match=text):
        indexed[0].query(folder / indexed[1].embedded.paths[0], **settings)


def test_a_query_is_known_by_any_path(indexed, folder, tmp_path, monkeypatch):
    """Relative, through a linked folder, and by a link to an image: it is never its own answer."""
    run, gallery = indexed
    itself = gallery.embedded.paths[30]
    (tmp_path / "linked").symlink_to(folder)
    (tmp_path / "photo.png").symlink_to(folder / itself)
    monkeypatch.chdir(folder.parent)
    names = [
        folder / itself,
        Path(folder.name) / itself,
        tmp_path / "linked" / itself,
        tmp_path / "photo.png",
        folder / "0" / ".." / itself,
    ]
    for answer in run.query(names, 5):
        assert itself not in answer.paths, answer.query
        assert answer.query_class == itself[0]
    (tmp_path / "copy.png").write_bytes((folder / itself).read_bytes())
    (copy,) = run.query(tmp_path / "copy.png", 5)
    assert (copy.paths[0], copy.query_class) == (itself, None)


@pytest.mark.usefixtures("without_report", "isolated_registry")
def test_queries_by_a_learned_metric(tmp_path, folder):
    class Learned(pml_ext.BatchAllTripletLoss):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.metric = LpDistance(p=1, normalize_embeddings=False)

    pml_ext.register(Learned, name="learned-metric")
    quick = ("schedule.epochs=2", "schedule.milestones=[1]", "sampler.iterations=4", "model.trunk.width=16")
    train("triplets/digits", out=tmp_path / "run", overrides=typed((*quick, "loss.name=learned-metric")), device="cpu")
    run = load_run(tmp_path / "run", "cpu")
    with pytest.warns(SkippedImage):
        gallery = run.index(folder)
    query = folder / gallery.embedded.paths[7]
    exact = run.query(query, 5, metric="learned")[0]
    points = gallery.embedded.embeddings
    expected = (points - points[7]).abs().sum(1)
    expected[7] = torch.inf
    assert exact.paths == [gallery.embedded.paths[index] for index in expected.argsort()[:5]]
    assert run.query(query, 5, metric="learned", shortlist=200)[0].paths == exact.paths
    assert run.query(query, 5, metric="learned", shortlist=1)[0].paths[0] in run.query(query, 6)[0].paths
    with pytest.raises(ConfigError, match="--shortlist 0"):
        run.query(query, 5, metric="learned", shortlist=0)
    run.index(folder, "IVF20,Flat")  # the shortlist of an index by faiss is its own
    near = run.query(query, 6)[0].paths
    assert set(run.query(query, 6, metric="learned", shortlist=7)[0].paths) == set(near)
    assert run.query(query, 5, metric="learned")[0].paths == exact.paths


# Queries of a part


@pytest.mark.parametrize("factory", ["exact", "IVF8,Flat"])
def test_within_a_class_answers_are_the_nearest(indexed, make, folder, factory):
    exact = indexed[1]
    run = indexed[0] if factory == "exact" else make()
    if factory != "exact":
        made_up(run, exact.embedded.embeddings, factory, exact.embedded.paths, folder)
    query = folder / exact.embedded.paths[0]
    everything = indexed[0].query(query, 199)[0]
    for name in ("0", "7"):
        wanted = [
            (path, value)
            for path, value in zip(everything.paths, everything.distances, strict=True)
            if path.startswith(f"{name}/")
        ][:6]
        (answer,) = run.query(query, 6, within=name)
        assert answer.paths == [path for path, _ in wanted]
        assert answer.distances == pytest.approx([value for _, value in wanted], abs=1e-3)
    members = sum(path.startswith("7/") for path in exact.embedded.paths)
    with pytest.warns(UserWarning, match=rf"fewer than 100 answers .*: the index holds {members} images of the class"):
        assert len(run.query(query, 100, within="7")[0].paths) == members
    with pytest.raises(ConfigError, match=r"--within 77: no class '77'; nearest: 7"):
        run.query(query, 3, within="77")


def test_within_a_flat_folder_says_what_is_wrong(runs, folder, tmp_path):
    run = load_run(runs[0], "cpu", store=tmp_path / "store")
    run.index(folder / "3")
    query = folder / "3" / run.indexed_images().paths[0]
    with pytest.raises(ConfigError, match="--within: this index has no classes, since its folder has no sub-folders"):
        run.query(query, 3, within="nosuch")


def test_querying_an_indexed_image_builds_no_network(indexed, folder, monkeypatch):
    fresh = load_run(indexed[0].folder, "cpu")
    monkeypatch.setattr("pml_ext_train.results.trained_network.build_network", None)
    query = folder / indexed[1].embedded.paths[0]
    assert fresh.query(query, 5) == indexed[0].query(query, 5)
    with pytest.raises(TypeError):  # another image does
        fresh.embed(torch.zeros(1, 8, 8, dtype=torch.uint8))


def test_weights_that_changed_after_loading_are_refused(runs, tmp_path):
    run = load_run(shutil.copytree(runs[0], tmp_path / "run"), "cpu")
    with (tmp_path / "run" / "checkpoints" / "model.pt").open("ab") as file:
        file.write(b"x")
    with pytest.raises(DataError, match="model.pt: changed since the run was loaded"):
        _ = run.network


def test_a_radius_leaves_out_what_is_farther(command, indexed, folder):
    run, gallery = indexed
    query = folder / gallery.embedded.paths[0]
    nearest = run.query(query, 20)[0]
    radius = (nearest.distances[4] + nearest.distances[5]) / 2
    assert run.query(query, 20, radius=radius)[0].paths == nearest.paths[:5]
    assert run.query(query, 3, radius=radius)[0].paths == nearest.paths[:3]
    done = command("query", run.folder, query, "-k", 20, "--radius", radius, "--json")
    (told,) = json.loads(done.stdout)
    assert (told["paths"], told["classes"]) == (nearest.paths[:5], [path[0] for path in nearest.paths[:5]])
    assert told["ids"] == [int(gallery.embedded.ids[gallery.embedded.paths.index(path)]) for path in told["paths"]]
    done = command("query", run.folder, query, "--radius", 1e-6)
    assert (done.returncode, done.stderr) == (0, f"pml-ext: {query}: no image within 1e-06 (--radius)\n")


def test_a_query_is_left_out_by_path():
    """Numbers are those of one collection, and a store may be filled from another."""
    image = Image(4, "a.png", class_number=None, size=1, fingerprint=1, vector=0, class_name="")
    results = [SearchResult(9, "a.png", "", 0.0), SearchResult(4, "b.png", "", 0.1)]
    (answer,) = answers_of(["/photos/a.png"], [image], [results], QueryOptions(k=1), "")
    assert answer.paths == ["b.png"]


@pytest.mark.parametrize(("made", "asked"), [("Zoe\u0308", "Zo\u00eb"), ("Zo\u00eb", "Zoe\u0308")])
def test_a_class_is_found_by_either_unicode_form(make, tmp_path, made, asked):
    write_some(tmp_path / "images", range(14))
    (tmp_path / "images" / "class 1").rename(tmp_path / "images" / made)
    run = make()
    run.index(tmp_path / "images")
    query = next((tmp_path / "images").glob("class 2/*"))
    (answer,) = run.query(query, 2, within=asked)
    assert answer.classes == ["Zo\u00eb"] * 2
    assert run.match([query], tmp_path / "answers.jsonl", 2, within=asked) == (1, 2)
