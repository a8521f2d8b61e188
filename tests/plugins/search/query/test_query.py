"""Queries: nearest images, filters, re-ranking, stores, pictures, texts, and files of answers."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from pytorch_metric_learning.distances import LpDistance

import pml_ext
from pml_ext import load_run
from pml_ext.errors import ConfigError, DataError
from pml_ext.evaluation import KReciprocal, NearestNeighbors, QueryExpansion, nearest_of
from pml_ext.plugin import SearchFilter, SearchResult
from pml_ext_fit.commands import fit
from pml_ext_search.collection import state
from pml_ext_search.commands.query import query as query_command
from pml_ext_search.query.query import QueryOptions, answers_of
from pml_ext_search.query.reranking import RERANKINGS, reranked, reranking_of
from pml_ext_search.query.stored import answers_from, is_store
from pml_ext_search.query.texts import features_gallery

from ....overrides import typed
from ...stores.careless import Lines
from ...train.networks.pairs import own_image_features, own_text_features, saved_pair
from ..conftest import made_up, trained
from ..photographs import photograph, write_photographs

TEXTS = ["a red car", "the blue house on the hill"]
PCA = ("model.embedder=pca", "model.embedding_size=8")

pytestmark = pytest.mark.filterwarnings("ignore::pml_ext_search.SkippedImage")
POINTS = torch.nn.functional.normalize(torch.randn(40, 5, generator=torch.Generator().manual_seed(0)))


def test_queries_find_their_class_and_not_themselves(indexed, folder):
    run, _ = indexed
    queries = [query for query in sorted(folder.glob("*/*.png"))[::20] if query.name != "broken.png"]
    answers = run.query(queries, k=5)
    assert [answer.query for answer in answers] == [str(query) for query in queries]
    right = 0
    for answer, query in zip(answers, queries, strict=True):
        assert len(answer.paths) == 5
        assert answer.distances == sorted(answer.distances)
        assert query.relative_to(folder).as_posix() not in answer.paths
        assert answer.query_class == query.parent.name
        points = run.embed([query, *(folder / path for path in answer.paths)])
        expected = (points[1:] - points[0]).norm(dim=1)
        assert answer.distances == pytest.approx(expected.tolist(), abs=2e-3)
        right += answer.classes.count(query.parent.name)
    assert right / (5 * len(queries)) > 0.8


def test_fewer_answers_than_k_are_warned_of(command, indexed, folder):
    run, gallery = indexed
    unknown = torch.zeros(1, 8, 8, dtype=torch.uint8)
    with pytest.warns(UserWarning, match=r"fewer than 1000 answers for 1 of 1 queries: the index holds 200 images"):
        (answer,) = run.query([unknown], k=1000)
    assert len(answer.paths) == 200
    assert (answer.query, answer.query_class) == ("image 0", None)
    done = command("query", run.folder, folder / gallery.embedded.paths[0], "-k", 200, "--json")
    assert len(json.loads(done.stdout)[0]["paths"]) == 199
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


@pytest.mark.usefixtures("isolated_registry")
def test_queries_by_a_learned_metric(tmp_path, folder):
    class Learned(pml_ext.BatchAllTripletLoss):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.metric = LpDistance(p=1, normalize_embeddings=False)

    pml_ext.register(Learned, name="learned-metric")
    quick = ("schedule.epochs=2", "schedule.milestones=[1]", "sampler.iterations=4", "model.trunk.width=16")
    trained("triplets/digits", tmp_path / "run", *quick, "loss.name=learned-metric")
    run = load_run(tmp_path / "run", "cpu")
    embedded = run.index(folder).embedded
    query = folder / embedded.paths[7]

    def learned(k=5, **options):
        return run.query(query, k, metric="learned", **options)[0].paths

    expected = (embedded.embeddings - embedded.embeddings[7]).abs().sum(1)
    expected[7] = torch.inf
    exact = [embedded.paths[index] for index in expected.argsort()[:5]]
    assert learned() == learned(shortlist=200) == exact
    assert learned(shortlist=1)[0] in run.query(query, 6)[0].paths
    with pytest.raises(ConfigError, match="--shortlist 0"):
        learned(shortlist=0)
    run.index(folder, "IVF20,Flat")  # the shortlist of an index by faiss is its own
    assert {*learned(6, shortlist=7)} == {*run.query(query, 6)[0].paths}
    assert learned() == exact


@pytest.mark.parametrize("factory", ["exact", "IVF8,Flat"])
def test_within_a_class_answers_are_the_nearest(indexed, make, folder, factory):
    embedded = indexed[1].embedded
    run = make()
    made_up(run, embedded.embeddings, factory, embedded.paths, folder)
    query = folder / embedded.paths[0]
    everything = indexed[0].query(query, 199)[0]
    distances = dict(zip(everything.paths, everything.distances, strict=True))
    for name in ("0", "7"):
        wanted = [path for path in everything.paths if path.startswith(f"{name}/")][:6]
        (answer,) = run.query(query, 6, within=name)
        assert answer.paths == wanted
        assert answer.distances == pytest.approx([distances[path] for path in wanted], abs=1e-3)
    members = embedded.classes.count("7")
    with pytest.warns(UserWarning, match=rf"fewer than 100 answers .*: the index holds {members} images of the class"):
        assert len(run.query(query, 100, within="7")[0].paths) == members
    with pytest.raises(ConfigError, match=r"--within 77: no class '77'; nearest: 7"):
        run.query(query, 3, within="77")


def test_within_a_flat_folder_says_what_is_wrong(make, folder):
    run = make(indexed=folder / "3")
    with pytest.raises(ConfigError, match="--within: this index has no classes, since its folder has no sub-folders"):
        run.query(folder / "3" / "0003.png", 3, within="nosuch")


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


def test_a_radius_leaves_out_what_is_farther(command, json_of, indexed, folder):
    run, gallery = indexed
    query = folder / gallery.embedded.paths[0]
    nearest = run.query(query, 20)[0]
    radius = (nearest.distances[4] + nearest.distances[5]) / 2
    assert run.query(query, 20, radius=radius)[0].paths == nearest.paths[:5]
    assert run.query(query, 3, radius=radius)[0].paths == nearest.paths[:3]
    (told,) = json_of("query", run.folder, query, "-k", 20, "--radius", radius)
    assert (told["paths"], told["classes"]) == (nearest.paths[:5], [path[0] for path in nearest.paths[:5]])
    assert told["ids"] == [int(gallery.embedded.ids[gallery.embedded.paths.index(path)]) for path in told["paths"]]
    done = command("query", run.folder, query, "--radius", 1e-6)
    assert (done.returncode, done.stderr) == (0, f"pml-ext: {query}: no image within 1e-06 (--radius)\n")


def test_a_query_is_left_out_by_path():
    """Numbers belong to one collection, and a store may be filled from a different one."""
    image = state.Image(4, "a.png", class_number=None, size=1, fingerprint=1, vector=0, class_name="")
    results = [SearchResult(9, "a.png", "", 0.0), SearchResult(4, "b.png", "", 0.1)]
    (answer,) = answers_of(["/photos/a.png"], [image], [results], QueryOptions(k=1), "")
    assert answer.paths == ["b.png"]


def test_a_query_imports_what_it_uses_alone(indexed, folder):
    """Each of these takes a fifth of a second or more."""
    run, gallery = indexed
    code = (
        "import sys; from pml_ext_train.cli.app import app_for\n"
        f"app_for(['query'])(['query', {str(run.folder)!r}, {str(folder / gallery.embedded.paths[0])!r}, '--json'], "
        "standalone_mode=False)\n"
        "names = ['torchvision', 'pytorch_metric_learning', 'sklearn', 'scipy', 'matplotlib', 'pandas']\n"
        "print([name for name in names if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"
    assert len(json.loads(done.stdout)[0]["paths"]) == 8


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
def test_many_queries_have_answers_of_single_ones(command, json_of, runs, folder, tmp_path, ending):
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra parquet")
    out = tmp_path / f"answers.{ending}"
    written = ("--store", tmp_path / "own", "-o", out)
    command("index", runs[0], folder, *written[:2])
    (tmp_path / "list").write_text("1/0001.png\n3/0003.png\n2/broken.png\n")
    found = json_of("query", runs[0], folder, "--list", tmp_path / "list", *written, "-k", 4)
    assert found == {"file": str(out), "queries": 2, "answers": 8}
    assert json_of("query", runs[0], "--list", tmp_path / "list", *written)["queries"] == 0
    images = sorted(set(folder.rglob("0*.png")))
    assert command("query", runs[0], folder, *written, "-k", 4).stdout == f"800 answers for 200 images: {out}\n"
    singles = load_run(runs[0], "cpu", store=tmp_path / "own").query(images, k=4)
    wanted = {"/".join(single.query.split("/")[-2:]): single.distances for single in singles}
    if ending == "jsonl":
        found = {row["query"]: row["distances"] for row in map(json.loads, out.read_text().splitlines())}
    else:
        table = parquet.read_table(out).to_pylist()
        found = {name: [row["distance"] for row in table if row["query"] == name] for name in wanted}
        assert len(table) == 800
    assert found.keys() == wanted.keys()
    assert all(found[name] == pytest.approx(wanted[name], abs=1e-4) for name in wanted)


def test_lines_need_neither_pyarrow_nor_parts(runs, folder, tmp_path, command, json_of, refused, block, monkeypatch):
    block("parts")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    own = ("--store", tmp_path / "own")
    command("index", runs[0], folder, *own)
    out = tmp_path / "answers.jsonl"
    done = json_of("query", runs[0], folder / "3", *own, "-k", 2, "-o", out)
    assert len(out.read_text().splitlines()) == done["queries"] > 0
    told = refused("query", runs[0], folder / "3", *own, "-o", tmp_path / "answers.parquet")
    assert "-o FILE.parquet needs the package 'pyarrow'" in told


def test_without_parts_commands_name_the_plugin(runs, folder, tmp_path, command, refused, block):
    block("parts")
    missing = "needs the plugin 'parts', which is blocked (by PML_EXT_BLOCK)"
    for arguments, what in (
        (("embed", runs[0], folder, "--part", "1/2", "-o", tmp_path / "parts"), "embed --part"),
        (("embed", runs[0], folder, "--on", "ray", "-o", tmp_path / "parts"), "embed --on ray"),
        (("index", runs[0], "--from", tmp_path / "parts"), "--from PARTS"),
    ):
        assert f"{what} {missing}" in refused(*arguments)
    assert command("embed", runs[0], folder, "--store", tmp_path / "own", "-o", tmp_path / "all.npz").returncode == 0


@pytest.fixture
def photos(runs, few, tmp_path, command):
    """A run with an index of a folder of its own, whose files may go."""
    run = shutil.copytree(runs[0], tmp_path / "run", ignore=shutil.ignore_patterns("collection", "query.png"))
    place = shutil.copytree(few[0], tmp_path / "photos")
    command("index", run, place)
    return run, place


@pytest.mark.parametrize(
    "damage",
    [Path.unlink, lambda path: path.rename(path.with_name("other.png")), lambda path: path.write_bytes(b"no image")],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_answers_whose_photograph_is_gone_are_answers(command, json_of, photos, damage, as_json):
    run, place = photos
    line = ("query", run, place / "0" / "0000.png", "-k", 5)
    (whole,) = json_of(*line)
    assert (whole["picture"], (run / "query.png").exists()) == (None, False)
    lost = place / whole["paths"][2]
    damage(lost)
    done = command(*line, *["--json", "--picture", run / "query.png"] * as_json)
    if as_json:
        assert json.loads(done.stdout) == [whole | {"picture": str(run / "query.png")}]
    else:
        assert [line.split()[2] for line in done.stdout.splitlines()[2:7]] == whole["paths"]
    assert "pml-ext: warning: the picture has a placeholder for an image" in done.stderr
    assert str(lost) in done.stderr
    assert ("1 of 5 answers no longer exist" in done.stderr) == (not lost.exists())
    assert Image.open(run / "query.png").width > 300


def test_a_picture_that_fails_costs_the_picture_alone(command, photos, monkeypatch):
    run, place = photos
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda *_, **__: 1 / 0)
    done = command("query", run, place / "0" / "0000.png", "-k", 2)
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 4
    assert done.stderr == "pml-ext: warning: no picture: ZeroDivisionError: division by zero\n"
    assert not (run / "query.png").exists()


def test_answers_are_those_of_the_filter(tmp_path):
    store = Lines(tmp_path, "table", 5)
    for number, point in enumerate(POINTS.tolist()):
        store.rows[number] = (0, f"{number % 3}/{number:02d}.png", str(number % 3), point)
    (answer,) = answers_from(store, None, ["a.png"], POINTS[:1], QueryOptions(k=3, where=SearchFilter(within="1")))
    assert answer.classes == ["1"] * 3
    assert answer.distances == sorted(answer.distances)
    with pytest.raises(ConfigError, match="--within 7: no image of this class in the store"):
        answers_from(store, None, ["a.png"], POINTS[:1], QueryOptions(k=3, where=SearchFilter(within="7")))


def test_a_store_address_has_a_scheme(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lancedb:mine").mkdir()
    found = [is_store(text) for text in ("lancedb:other", "lancedb:mine", "folder", "C:/photos", "pgvector:")]
    assert found == [True, False, False, False, False]


def test_without_the_plugin_of_stores_the_rest_runs(command, refused, runs, folder, tmp_path, block):
    block("stores")
    own = ("--store", tmp_path / "own")
    photo = folder / "3" / "0003.png"
    secret = f"lancedb:{tmp_path}/secret"
    told = refused("index", runs[0], folder, *own, "--to", secret)
    wanted = "the store lancedb:... needs the plugin 'stores', which is blocked (by PML_EXT_BLOCK)"
    assert wanted in told
    assert "secret" not in told
    assert command("index", runs[0], folder, *own).returncode == 0
    assert command("query", runs[0], photo, *own, "--json").returncode == 0
    assert wanted in refused("query", runs[0], photo, "--store", secret)


def without(indices, own):
    return [index for index in indices if index != own and index >= 0]


@pytest.mark.parametrize("name", RERANKINGS)
@pytest.mark.parametrize("inside", [True, False])
def test_answers_equal_the_calculators_ranking(name, inside):
    """A query of the index is left out of all neighborhoods, as if it were not there."""
    queries = torch.arange(3) + (5 if inside else 30)
    own = queries if inside else torch.full((3,), -1)
    _, places = reranked(RERANKINGS[name], nearest_of, POINTS[queries], 20, POINTS[:30], own)
    for query, row, itself in zip(queries.tolist(), places.tolist(), own.tolist(), strict=True):
        rest = [index for index in range(30) if index != itself]
        find = RERANKINGS[name].finder(POINTS[query, None], POINTS[rest], False, None, NearestNeighbors(nearest_of))
        expected = [rest[index] for index in find(torch.tensor([0]), 20)[1][0].tolist()]
        found = without(row, itself)
        assert found == expected[: len(found)]
        assert len(found) >= 19


def test_missing_places_are_no_neighbors():
    def search(points, k, vectors):
        distances, indices = nearest_of(points, k, vectors)
        return distances, indices.where(torch.arange(k) < 4, -1)

    _, places = reranked(KReciprocal(3, 2), search, POINTS[:1], 6, POINTS, torch.tensor([0]))
    assert (places[0] >= 0).sum() == 3
    _, places = reranked(QueryExpansion(10), search, POINTS[:1], 6, POINTS, torch.tensor([0]))
    near = nearest_of(POINTS[:1], 4, POINTS)[1][0]
    expanded = torch.nn.functional.normalize(POINTS[near].sum(0, keepdim=True))
    assert places.tolist() == search(expanded, 6, POINTS)[1].tolist()


@pytest.mark.parametrize("name", RERANKINGS)
def test_from_python_and_the_command_line(json_of, indexed, folder, name):
    run, gallery = indexed
    image = folder / gallery.embedded.paths[0]
    points = gallery.embedded.embeddings
    _, places = reranked(RERANKINGS[name], nearest_of, points[:1], 6, points, torch.tensor([0]))
    wanted = [gallery.embedded.paths[index] for index in without(places[0].tolist(), 0)][:5]
    assert run.query(image, 5, rerank=name)[0].paths == wanted
    assert json_of("query", run.folder, image, "-k", 5, "--rerank", name)[0]["paths"] == wanted


def test_reranking_options_that_do_not_fit(indexed, folder):
    run, gallery = indexed
    image = folder / gallery.embedded.paths[0]
    with pytest.raises(ConfigError, match="--rerank no re-ranking 'alfa'.*alpha"):
        run.query(image, rerank="alfa")
    with pytest.raises(ConfigError, match="leave out --store, --metric and --radius"):
        run.query(image, rerank="alpha", radius=0.5)
    assert reranking_of(RERANKINGS["alpha"]) is RERANKINGS["alpha"]


@pytest.fixture
def flat(tmp_path):
    """A flat folder of twelve photographs."""
    return write_photographs(tmp_path / "my photos", 12, side=40)


def ranked_by_the_pair(model, run, photographs, text, kind):
    """Paths and distances, nearest first, by the pair's own features of each photograph and of the text."""
    towards = own_text_features(model, [text], kind)[0].double()
    found = []
    for file in sorted(photographs.glob("*.png")):
        pixels = run.images.computed.transform(torch.tensor(np.array(Image.open(file))).permute(2, 0, 1))
        features = own_image_features(model, pixels[None])[0].double()
        distance = float((features / features.norm() - towards / towards.norm()).norm())
        found.append((distance, file.name))
    return sorted(found)


@pytest.fixture
def fitted(flat, tmp_path, monkeypatch):
    """Fits a run to the features of a small pair: the pair's model and the run."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def make(*settings, kind="clip"):
        model = saved_pair(tmp_path / "pair", kind)
        fit(flat, out=tmp_path / "run", device="cpu", trunk=str(tmp_path / "pair"), overrides=typed(settings))
        return model, load_run(tmp_path / "run", "cpu")

    return make


@pytest.mark.parametrize(
    ("kind", "head", "size"), [("clip", (), 24), ("siglip", (), 32), ("clip", PCA, 8), ("siglip", PCA, 8)]
)
def test_photographs_are_ranked_by_the_pairs_features(fitted, flat, kind, head, size):
    """Behind a head that changes the vectors of images, texts are compared with the features before it."""
    model, run = fitted(*head, kind=kind)
    assert run.images.size == size
    answers = run.query_texts(TEXTS, k=12)
    for answer, text in zip(answers, TEXTS, strict=True):
        wanted = ranked_by_the_pair(model, run, flat, text, kind)
        assert answer.query == text
        assert answer.paths == [name for _, name in wanted]
        assert answer.distances == pytest.approx([distance for distance, _ in wanted], abs=1e-5)
    assert (run.place.with_name("collection-features").exists()) == bool(head)
    assert run.query_texts(TEXTS[:1], k=12, radius=answers[0].distances[3] + 1e-6)[0].paths == answers[0].paths[:4]


def test_features_beside_a_head_follow_the_index(fitted, flat):
    _, run = fitted(*PCA)
    assert len(features_gallery(run.loaded, run.search_index)) == 12
    photograph(99, side=48).save(flat / "new.png")
    run.index()
    assert "new.png" in run.query_texts(["car"], k=13)[0].paths


def test_texts_are_compared_with_whole_features(fitted, flat, tmp_path):
    _, whole = fitted()
    run = load_run(tmp_path / "run", "cpu", store=tmp_path / "short", size=5)
    run.index(flat)
    assert run.query_texts(TEXTS, k=12) == whole.query_texts(TEXTS, k=12)


def test_the_command_prints_answers_to_texts(fitted, flat, tmp_path, capsys):
    _, run = fitted()
    capsys.readouterr()
    query_command(flat, text=["a red car"], k=3, device="cpu", as_json=True)
    (found,) = json.loads(capsys.readouterr().out)
    assert found["query"] == "a red car"
    assert found["paths"] == run.query_texts(["a red car"], 3)[0].paths
    query_command(run.folder, text=["a red car", "house"], k=2, device="cpu")
    assert (run.folder / "query.png").is_file()
    for wrong in ({"images": ["x.png"]}, {"rerank": "average"}, {"metric": "learned"}, {"store": "lancedb:x"}):
        with pytest.raises(ConfigError, match="--text is looked for in the features of the run's own index; leave out"):
            query_command(run.folder, text=["a red car"], device="cpu", **wrong)
    small = ["model.trunk=convnet", "model.trunk.weights=random", "model.embedding_size=64"]
    small += ["data.images.resize=16", "data.images.crop=16"]
    fit(flat, out=tmp_path / "other", device="cpu", overrides=typed(small))
    with pytest.raises(ConfigError, match="the trunk convnet has no text encoder; type: .*--trunk hf/PAIR"):
        query_command(tmp_path / "other", text=["a red car"], device="cpu")
