"""Queries: the nearest images of an index, within a class or a radius; near-duplicates; what a query imports."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pytorch_metric_learning.distances import LpDistance

import pml_ext
from pml_ext import load_run
from pml_ext.errors import ConfigError
from pml_ext.evaluation.neighbors import nearest_of
from pml_ext.training.launch import train
from pml_ext_search.collection import Image
from pml_ext_search.embedding import SkippedImage
from pml_ext_search.query import QueryOptions, _with_exact_distances, answers_of
from pml_ext_search.stores import SearchFilter, SearchResult

from .conftest import made_up


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
def test_wrong_queries(indexed, folder, settings, text):
    with pytest.raises(ConfigError, match=text):
        indexed[0].query(folder / indexed[1].embedded.paths[0], **settings)


def test_a_query_is_known_by_any_of_its_names(indexed, folder, tmp_path, monkeypatch):
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
def test_by_a_learned_metric(tmp_path, folder):
    class Learned(pml_ext.BatchAllTripletLoss):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.metric = LpDistance(p=1, normalize_embeddings=False)

    pml_ext.register(Learned, name="learned-metric")
    quick = ("schedule.epochs=2", "schedule.milestones=[1]", "sampler.iterations=4", "model.trunk.width=16")
    train("triplets/digits", out=tmp_path / "run", overrides=(*quick, "loss.name=learned-metric"), device="cpu")
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
def test_within_a_class_answers_are_the_nearest_of_it(indexed, make, folder, factory):
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


@pytest.mark.parametrize("factory", ["", "IVF2,Flat"])
def test_groups_of_duplicates_are_what_pairs_connect(make, monkeypatch, factory):
    for name in ("_TILE", "_BLOCK"):
        monkeypatch.setattr(f"pml_ext_search.query.{name}", 33)
    points = torch.nn.functional.normalize(torch.randn(150, 64, generator=torch.Generator().manual_seed(0)))
    points[100] = points[3]
    points[50] = torch.nn.functional.normalize(points[3] + 0.01 * points[4], dim=0)
    for step in range(3):  # a chain, of which the ends are farther than the radius
        points[120 + step] = torch.nn.functional.normalize(points[7] + 0.08 * (step + 1) * points[8], dim=0)
    paths = [f"{number:03d}.png" for number in range(150)]
    gallery = made_up(make(), points, factory, paths)
    groups = gallery.duplicates()
    assert groups == [["007.png", "120.png", "121.png", "122.png"], ["003.png", "050.png", "100.png"]]
    assert (points[7] - points[122]).norm() > 0.1
    assert gallery.duplicates(1e-4) == [["003.png", "100.png"]]
    paths = [f"{number:05d}.png" for number in range(1000)]  # of which there are 499,500 pairs
    assert made_up(make("copies"), torch.full((1000, 64), 0.125), factory, paths).duplicates() == [paths]


def test_the_command_lists_near_duplicates(command, make, few, tmp_path):
    run = make()
    images = shutil.copytree(few[0], tmp_path / "images")
    file = sorted(images.glob("*/*.png"))[0]
    shutil.copy(file, images / "copy $1_3.png")
    place = ("--store", run.index(images).place)
    done = command("query", run.folder, "--duplicates", "--radius", 1e-3, *place)
    assert done.returncode == 0, done.stderr
    assert "copy $1_3.png" in done.stdout
    assert done.stdout.splitlines()[-1] == "1 group of 2 images within 0.001 of another (--radius)"
    told = json.loads(command("query", run.folder, "--duplicates", "--radius", 1e-3, "--json", *place).stdout)
    assert told == {"radius": 0.001, "groups": [[file.relative_to(images).as_posix(), "copy $1_3.png"]]}


def test_a_query_imports_what_it_uses_alone(indexed, folder):
    """Each of these takes a fifth of a second or more."""
    run, gallery = indexed
    code = (
        "import sys; from pml_ext.cli.app import app_for\n"
        f"app_for(['query'])(['query', {str(run.folder)!r}, {str(folder / gallery.embedded.paths[0])!r}, '--json'], "
        "standalone_mode=False)\n"
        "names = ['torchvision', 'pytorch_metric_learning', 'sklearn', 'scipy', 'matplotlib', 'pandas']\n"
        "print([name for name in names if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"
    assert len(json.loads(done.stdout)[0]["paths"]) == 8


def test_an_empty_argument_is_not_the_folder_at_hand(command, runs, few, monkeypatch):
    monkeypatch.chdir(few[0])
    for arguments in (["index", runs[0], ""], ["embed", runs[0], "", "-o", "points.npz"], ["query", "", "a.png"]):
        done = command(*arguments)
        text = f"pml-ext: argument {arguments.index('') + 1} is empty, as that of a variable that is not set"
        assert (done.returncode, done.stderr) == (2, f"{text}; leave it out, or say what is meant\n")


def test_a_collection_that_was_made_anew_is_opened_again(make):
    """Its version begins at 1 again, as that of the collection that is open."""
    points = torch.nn.functional.normalize(torch.randn(30, 64, generator=torch.Generator().manual_seed(0)))
    run = make("anew")
    gallery = made_up(run, points)
    options = QueryOptions(k=2)
    assert gallery.answer([""], points[5:6], options)[0].paths[0] == "00005.png"
    shutil.rmtree(run.collection.place)
    made_up(load_run(run.folder, "cpu", store=run.collection.place), points.flip(0))
    assert gallery.answer([""], points[5:6], options)[0].paths[0] == "00024.png"


def test_many_queries_at_once_have_exact_distances():
    """faiss multiplies matrices for them, which leaves equal vectors apart."""
    points = torch.nn.functional.normalize(torch.randn(400, 512, generator=torch.Generator().manual_seed(0)))
    _, places = nearest_of(points, 2, points)
    distances, sorted_places = _with_exact_distances(points, points, places)
    assert distances[:, 0].max() == 0
    assert torch.equal(sorted_places[:, 0], torch.arange(400))
    wanted = (points[sorted_places[:, 1]] - points).norm(dim=1)
    torch.testing.assert_close(distances[:, 1], wanted)


@pytest.mark.parametrize("most", [16, 80, 1000])
def test_exact_distances_are_computed_in_parts(monkeypatch, most):
    """Of queries, and of the many answers to one."""
    points = torch.nn.functional.normalize(torch.randn(50, 8, generator=torch.Generator().manual_seed(0)))
    places = torch.stack([torch.randperm(50, generator=torch.Generator().manual_seed(seed)) for seed in range(3)])
    largest = []

    class Vectors:
        device = points.device

        def __getitem__(self, rows):
            largest.append(rows.numel() * 8)
            return points[rows]

    monkeypatch.setattr("pml_ext_search.query._EXACT", most)
    distances, rows = _with_exact_distances(points[:3], Vectors(), places)
    assert max(largest) <= most
    wanted = (points[:3, None] - points).norm(dim=2)
    torch.testing.assert_close(distances, wanted.sort(dim=1).values)
    torch.testing.assert_close(wanted.gather(1, rows), distances)


@pytest.mark.parametrize("factory", ["", "IVF4,PQ8x4"])
def test_distances_are_those_of_the_embeddings(make, factory):
    """faiss has others, of codes."""
    points = torch.nn.functional.normalize(torch.randn(400, 64, generator=torch.Generator().manual_seed(0)))
    points[200:] = points[:200]
    gallery = made_up(make(f"exact {factory}"), points, factory)
    answers = gallery.answer([""] * 30, points[:30], QueryOptions(k=8, where=SearchFilter(radius=1e-4)))
    places = {path: number for number, path in enumerate(gallery.embedded.paths)}
    embedded = gallery.embedded.embeddings
    for number, answer in enumerate(answers):
        assert f"{number:05d}.png" in answer.paths
        wanted = [(embedded[places[path]] - points[number]).norm().item() for path in answer.paths]
        assert answer.distances == pytest.approx(wanted, abs=1e-6)
    if not factory:
        assert all(len(answer.paths) == 2 for answer in answers)
    assert len(gallery.duplicates(0.01)) == 200


def test_a_query_is_left_out_by_its_path_and_not_by_its_number():
    """Numbers are those of one collection, and a store may be filled from another."""
    image = Image(4, "a.png", class_number=None, size=1, fingerprint=1, vector=0, class_name="")
    results = [SearchResult(9, "a.png", "", 0.0), SearchResult(4, "b.png", "", 0.1)]
    (answer,) = answers_of(["/photos/a.png"], [image], [results], QueryOptions(k=1), "")
    assert answer.paths == ["b.png"]
