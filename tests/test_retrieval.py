"""Embed, index, query, cluster and export with a trained run, from Python and from the command line."""

import csv
import json
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from pytorch_metric_learning.distances import LpDistance
from sklearn.datasets import load_digits

import pml_ext
from pml_ext import load_run
from pml_ext.errors import ConfigError, DataError
from pml_ext.evaluation import neighbours_under, reranked_under
from pml_ext.experiment import train
from pml_ext.retrieval import SkippedImage

QUICK = ("schedule.epochs=3", "schedule.milestones=[2]", "sampler.iterations=8", "model.trunk.width=16")
REPORT = "pml_ext.experiment.run.write_run_report"
BROKEN = {"2/broken.png", "notes.txt"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(REPORT, lambda *_: None)
        for name, seed in (("one", 0), ("other", 1)):
            train("triplets/digits", out=place / name, seed=seed, overrides=QUICK, device="cpu")
    return place / "one", place / "other"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """200 digits as PNG files, one sub-folder a class, and two files that are no images."""
    place = tmp_path_factory.mktemp("images")
    digits = load_digits()
    for number in range(200):
        file = place / str(digits.target[number]) / f"{number:04d}.png"
        file.parent.mkdir(exist_ok=True)
        Image.fromarray((digits.images[number] * 255 / 16).round().astype(np.uint8)).save(file)
    (place / "2" / "broken.png").write_bytes(b"no image")
    (place / "notes.txt").write_text("no image either")
    (place / ".hidden.png").write_bytes(b"not looked at")
    return place


@pytest.fixture(scope="module")
def indexed(runs, folder):
    run = load_run(runs[0], "cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkippedImage)
        return run, run.index(folder)


def command(*arguments):
    line = [sys.executable, "-m", "pml_ext", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, timeout=200)


def test_embeddings_are_those_of_the_run(runs, folder):
    from pml_ext.experiment import load_recipes
    from pml_ext.experiment.run import Run

    run = load_run(runs[0], "cpu")
    recipe = next(iter(load_recipes(str(runs[0] / "recipe.toml")).values()))
    trained = Run(recipe, "again", runs[0])
    trained.load_model_state(torch.load(runs[0] / "checkpoints" / "model.pt"))
    images = [trained.splits["test"].image(index) for index in range(20)]
    expected = trained.embeddings("test")[:20]
    torch.testing.assert_close(run.embed(images, normalize=False), expected)
    found = run.embed(torch.stack(images))
    torch.testing.assert_close(found, torch.nn.functional.normalize(expected))
    file = next(folder.glob("3/*.png"))
    assert run.embed(file).shape == run.embed([file]).shape == (1, 64)


def test_a_folder_with_unreadable_files(indexed, folder):
    run, gallery = indexed
    with pytest.warns(SkippedImage) as heard:
        found = run.embed_folder(folder)
    assert {str(warning.message).split(":")[0].split("/")[-1] for warning in heard} == {"broken.png", "notes.txt"}
    assert set(found.skipped) == BROKEN == set(gallery.embedded.skipped)
    assert len(found.paths) == len(found.embeddings) == 200
    assert found.paths == sorted(found.paths)
    assert found.classes[:3] == ["0", "0", "0"]


def test_queries_find_their_class_and_not_themselves(indexed, folder):
    run, gallery = indexed
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
    unknown = run.query([torch.zeros(1, 8, 8, dtype=torch.uint8)], k=1000, gallery=gallery)[0]
    assert len(unknown.paths) == 200
    assert (unknown.query, unknown.query_class) == ("image 0", None)


@pytest.mark.parametrize("factory", ["Flat", "IVF4,Flat", "HNSW16"])
def test_faiss_factories(indexed, folder, tmp_path, factory):
    pytest.importorskip("faiss")
    run, exact = indexed
    with pytest.warns(SkippedImage):
        gallery = run.index(folder, tmp_path / "index", factory)
    query = folder / exact.embedded.paths[0]
    found, expected = run.query(query, 8, gallery)[0], run.query(query, 8, exact)[0]
    if factory == "Flat":
        assert found.paths == expected.paths
    assert len(set(found.paths) & set(expected.paths)) >= 4
    assert found.distances[0] == pytest.approx(expected.distances[0], abs=1e-3)


def test_a_factory_that_faiss_refuses(indexed, folder, tmp_path):
    pytest.importorskip("faiss")
    with pytest.warns(SkippedImage), pytest.raises(ConfigError, match="--index nonsense: faiss refuses it"):
        indexed[0].index(folder, tmp_path / "index", "nonsense")


def test_an_index_of_another_run_is_refused(runs, indexed, folder):
    other = load_run(runs[1], "cpu")
    with pytest.raises(DataError, match=r"index was built by the run .*one .*, not by .*other .*type: pml-ext index"):
        other.gallery(indexed[1].place)
    with pytest.raises(DataError, match=r"no index; type: pml-ext index"):
        other.query(folder / indexed[1].embedded.paths[0])


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"k": 0}, "-k 0"),
        ({"metric": "learned"}, "has no learned metric: its loss is batch-all-triplets"),
        ({"metric": "cosine"}, "no metric 'cosine'"),
        ({"shortlist": 5}, "--shortlist goes with --metric learned"),
    ],
)
def test_wrong_queries(indexed, folder, settings, text):
    with pytest.raises(ConfigError, match=text):
        indexed[0].query(folder / indexed[1].embedded.paths[0], **settings)


def test_wrong_images(indexed, folder, tmp_path):
    run, _ = indexed
    with pytest.raises(DataError, match="no such file"):
        run.query("nowhere.png")
    with pytest.raises(DataError, match=r"broken.png: not a readable image"):
        run.query(folder / "2" / "broken.png")
    with pytest.raises(ConfigError, match="is a folder"):
        run.query(folder)
    with pytest.raises(TypeError, match="uint8"):
        run.embed([torch.zeros(1, 8, 8)])
    (tmp_path / "only.txt").write_text("")
    with (
        pytest.warns(SkippedImage),
        pytest.raises(DataError, match="no readable image among 1 files; the first: .*only"),
    ):
        run.embed_folder(tmp_path)
    with pytest.raises(DataError, match="no such folder"):
        run.embed_folder(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"no finished run \(no recipe.toml in it\)"):
        load_run(tmp_path)


def test_clusters(indexed, folder, tmp_path):
    run, _ = indexed
    with pytest.warns(SkippedImage):
        found = run.cluster(folder, 10, tmp_path / "out")
    assert len(found) == 200
    sizes = np.bincount(list(found.values()))
    assert len(sizes) == 10
    assert list(sizes) == sorted(sizes, reverse=True)
    with (tmp_path / "out" / "clusters.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["path"]: int(row["cluster"]) for row in rows} == found
    assert len(list((tmp_path / "out").glob("cluster-*.png"))) == 10
    from pml_ext.evaluation import purity

    assert purity([int(path[0]) for path in found], list(found.values())) > 0.6
    with pytest.warns(SkippedImage), pytest.raises(ConfigError, match="--clusters 201: .* the 200 images"):
        run.cluster(folder, 201, tmp_path / "none")
    with pytest.raises(ConfigError, match="--clusters 0: wanted 1 or more"):
        run.cluster(folder, 0, tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.usefixtures("without_report")
def test_by_a_learned_metric(tmp_path, folder):
    class Learned(pml_ext.BatchAllTripletLoss):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.metric = LpDistance(p=1, normalize_embeddings=False)

    pml_ext.register(Learned, name="learned-metric")
    try:
        overrides = (*QUICK, "loss.name=learned-metric")
        train("triplets/digits", out=tmp_path / "run", overrides=overrides, device="cpu")
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
        with pytest.warns(SkippedImage):  # the shortlist of an index by faiss is its own
            coarse = run.index(folder, tmp_path / "coarse", "IVF40,Flat")
        found = run.query(query, 5, coarse, metric="learned", shortlist=200)[0]
        cell = run.query(query, 200, coarse)[0].paths
        assert len(cell) < 199  # of one cell alone
        assert found.paths == [path for path in run.query(query, 200, metric="learned")[0].paths if path in cell][:5]
    finally:
        pml_ext.registry.unregister_local()


def test_a_shortlist_nears_the_exact_answer_as_it_grows():
    generator = torch.Generator().manual_seed(0)
    points = torch.nn.functional.normalize(torch.randn(300, 8, generator=generator))
    metric = LpDistance(p=1, normalize_embeddings=False)
    exact = neighbours_under(metric)(points, 10, points, ref_includes_query=True)[1]
    shares = []
    for shortlist in (11, 30, 100, 300):
        found = reranked_under(metric, shortlist)(points, 10, points, ref_includes_query=True)[1]
        shares.append((found[:, :, None] == exact[:, None]).any(2).double().mean().item())
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert shares[0] < 0.95


# The command line


def test_the_commands(runs, folder, tmp_path):
    done = command("embed", runs[1], folder, "-o", tmp_path / "all.npz")
    assert done.returncode == 0, done.stderr
    assert "200 embeddings of size 64" in done.stdout
    assert "broken.png" in done.stderr
    assert "2 files skipped" in done.stderr
    with np.load(tmp_path / "all.npz") as saved:
        assert saved["embeddings"].shape == (200, 64)
        assert np.allclose(np.linalg.norm(saved["embeddings"], axis=1), 1, atol=1e-5)
        assert saved["paths"][0].startswith("0/")
        assert saved["classes"][0] == "0"
    done = command("index", runs[1], folder)
    assert done.returncode == 0, done.stderr
    assert "200 images indexed" in done.stdout
    query = sorted(folder.glob("5/*.png"))[0]
    done = command("query", runs[1], query, "-k", "3", "--picture", tmp_path / "q.png", "--json")
    assert done.returncode == 0, done.stderr
    (answer,) = json.loads(done.stdout)
    assert len(answer["paths"]) == 3
    with Image.open(tmp_path / "q.png") as picture:
        assert picture.size[0] > 300
    done = command("query", runs[1], query, "-k", "3", "--metric", "learned")
    assert done.returncode == 2
    assert "has no learned metric" in done.stderr
    done = command("cluster", runs[1], folder, "--clusters", "10", "-o", tmp_path / "clusters")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "clusters" / "clusters.csv").exists()


def test_two_runs_side_by_side(runs, indexed, folder):
    other = load_run(runs[1], "cpu")
    with pytest.warns(SkippedImage):
        theirs = other.index(folder)
    run, gallery = indexed
    query = folder / gallery.embedded.paths[0]
    beside = [("other", other.query(query, 4, theirs), theirs.embedded.folder)]
    figure = run.picture(run.query(query, 4), gallery, beside)
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[0].endswith("one")
    assert titles[5].endswith("other")
    assert all(title[0] in "✓✗" for title in titles[1:5])


def test_an_exported_network_gives_the_embeddings_without_this_package(runs, folder, tmp_path):
    done = command("export", runs[0], "-o", tmp_path / "exported")
    assert done.returncode == 0, done.stderr
    about = json.loads((tmp_path / "exported" / "preprocess.json").read_text())
    assert (about["image_size"], about["channels"], about["normalize"]) == (8, 1, None)
    script = """
        import json, sys
        sys.modules["pml_ext"] = None
        import numpy as np, torch
        from PIL import Image
        from safetensors.torch import load_file
        from torch import nn
        tensors = load_file(sys.argv[1] + "/model.safetensors")
        about = json.load(open(sys.argv[1] + "/preprocess.json"))
        block = lambda a, b: [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2)]
        net = nn.ModuleDict({"trunk": nn.Sequential(*block(1, 16), *block(16, 16), nn.Flatten()),
                             "embedder": nn.Linear(about["features"], about["embedding_size"])}).eval()
        net.load_state_dict(tensors)
        image = torch.tensor(np.array(Image.open(sys.argv[2]).convert("L")))[None, None] / 255
        found = nn.functional.normalize(net["embedder"](net["trunk"](image)))
        print(json.dumps(found[0].tolist()))
    """
    import textwrap

    file = next(folder.glob("4/*.png"))
    line = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "exported"), str(file)]
    found = json.loads(subprocess.run(line, capture_output=True, text=True, check=True).stdout)
    assert found == pytest.approx(load_run(runs[0], "cpu").embed(file)[0].tolist(), abs=1e-5)


@pytest.mark.usefixtures("without_report")
def test_the_lines_of_the_readme_load_an_export(tmp_path):
    """A colour folder, a torchvision trunk, and the README's words."""
    generator = np.random.default_rng(0)
    for name in ("a", "b", "c", "d"):
        for number in range(6):
            file = tmp_path / "photos" / name / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(generator.integers(256, size=(40, 48, 3), dtype=np.uint8)).save(file)
    train(
        "pml/contrastive/digits", out=tmp_path / "run", device="cpu",
        overrides=(f"data.name=folder:{tmp_path / 'photos'}", "data.image_size=32", "data.augment={}",
                   "model.trunk=torchvision/resnet18", "sampler={name='shuffle', batch_size=6, iterations=1}",
                   "schedule={epochs=1}"),
    )  # fmt: skip
    run = load_run(tmp_path / "run", "cpu")
    run.export(tmp_path / "exported")
    photo = tmp_path / "photos" / "a" / "3.png"
    (tmp_path / "photo.png").write_bytes(photo.read_bytes())
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    (block,) = [block for block in re.findall(r"```python\n(.*?)```", readme, re.S) if "load_file" in block]
    script = f"import sys\nsys.modules['pml_ext'] = None\n{block}\nprint(embedding[0].tolist())"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == pytest.approx(run.embed(photo)[0].tolist(), abs=1e-5)
