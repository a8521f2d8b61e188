"""A finished run: loaded from its folder, measured, and exported without this package."""

import hashlib
import json
import os
import re
import resource
import shutil
import sys
from unittest.mock import DEFAULT, Mock, patch

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from pml_ext import ConfigError, DataError, load_run, registry, train
from pml_ext.errors import UnwritableError
from pml_ext_train.data import read_image
from pml_ext_train.files import locked_folder
from pml_ext_train.files.checksums import changed_files, replace_file
from pml_ext_train.recipe import load_recipes
from pml_ext_train.recipe.schema import CutTable
from pml_ext_train.report import render
from pml_ext_train.results import LoadedRun, export
from pml_ext_train.results.export import Normalized, write_onnx
from pml_ext_train.results.measurements import Measurement, add_measurement, measurements_of

from ....overrides import typed


@pytest.fixture(scope="module")
def exported(runs, tmp_path_factory):
    """Both graphs of a run, compared on images of noise."""
    pytest.importorskip("onnxruntime", reason="the extra [onnx] is not installed")
    place = tmp_path_factory.mktemp("graphs") / "exported"
    load_run(runs[0], "cpu").export(place, onnx=True)
    return place


@pytest.fixture
def run(runs):
    return load_run(runs[0], "cpu")


@pytest.fixture
def about(run, tmp_path):
    """What an export says of its images."""
    return json.loads(run.export(tmp_path / "out").joinpath("preprocess.json").read_text())


def test_a_graph_accepts_batches_of_any_size(exported, run, folder):
    import onnxruntime

    files = [file for file in sorted(folder.glob("*/*.png")) if file.name != "broken.png"][:100]
    images = torch.stack([run.images.computed.prepared(file) for file in files])
    expected = run.embed(files)
    session = onnxruntime.InferenceSession(exported / "model.onnx")
    for size in (1, 7, 100):
        by_onnx = [session.run(None, {"images": batch.numpy()})[0] for batch in images.split(size)]
        assert np.abs(np.concatenate(by_onnx) - expected.numpy()).max() < 1e-4


def test_an_export_names_its_files_with_checksums(exported):
    about = json.loads((exported / "preprocess.json").read_text())
    sums = dict(line.split("  ")[::-1] for line in (exported / "SHA256SUMS").read_text().splitlines())
    assert set(sums) == {"model.safetensors", "model.onnx", "preprocess.json", "README.md"}
    for key, name in (("weights", "model.safetensors"), ("onnx", "model.onnx")):
        assert about[key]["file"] == name
        assert about[key]["sha256"] == sums[name] == hashlib.sha256((exported / name).read_bytes()).hexdigest()
    assert 0 <= about["onnx"]["largest_difference"] < 1e-4


def test_code_in_the_model_card_gives_embeddings(exported, run, runs, folder, tmp_path, monkeypatch):
    _, head, body = (exported / "README.md").read_text().split("---\n", 2)
    assert {"license: unknown", "- recall_at_1"} <= {*head.splitlines()}
    metrics = json.loads((runs[0] / "metrics.json").read_text())
    assert f"| MAP@R | {metrics['after']['map_at_r']:.4f} | {metrics['before']['map_at_r']:.4f} |" in body
    file = next(folder.glob("4/*.png"))
    (tmp_path / "photo.jpg").write_bytes(file.read_bytes())
    for path in exported.glob("model.*"):
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    steps, *ways = re.findall(r"```python\n(.*?)```", body, re.S)
    expected = run.embed(file)
    names = {}
    exec(steps + ways[0], names)
    torch.testing.assert_close(torch.as_tensor(names["embedding"]), expected, rtol=0, atol=1e-4)
    exec(ways[1], names)
    nn = torch.nn
    about = json.loads((exported / "preprocess.json").read_text())
    blocks = [[nn.Conv2d(size, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)] for size in (1, 16)]
    trunk = nn.Sequential(*blocks[0], *blocks[1], nn.Flatten())
    embedder = nn.Linear(about["features"], 64)
    nn.ModuleDict({"trunk": trunk, "embedder": embedder}).eval().load_state_dict(names["tensors"])
    found = nn.functional.normalize(embedder(trunk(names["images"])))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_an_export_by_features_leaves_out_the_head(run, runs, tmp_path):
    run.export(tmp_path, by="features")
    assert {name.partition(".")[0] for name in load_file(tmp_path / "model.safetensors")} == {"trunk"}
    assert "features" not in json.loads((runs[0] / "metrics.json").read_text())  # of a trunk from random weights
    assert "Not measured." in (tmp_path / "README.md").read_text()


class Untraceable(torch.nn.Module):
    """Looks at values."""

    def forward(self, images):
        return images.flatten(1) * (2 if float(images.sum()) > 1 else 1)


def test_a_graph_unlike_the_network_is_refused(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime", reason="the extra [onnx] is not installed")
    images = torch.rand(2, 3, 3, 3)
    with pytest.raises(ConfigError, match="cannot write this network as ONNX for batches of any size") as caught:
        write_onnx(tmp_path / "model.onnx", Normalized(Untraceable(), torch.nn.Identity()).eval(), images)
    assert "\n" not in str(caught.value)
    network, other = (Normalized(torch.nn.Flatten(), torch.nn.Linear(27, 8)).eval() for _ in range(2))
    real = torch.onnx.export
    monkeypatch.setattr("torch.onnx.export", lambda _, *arguments, **more: real(other, *arguments, **more))
    with pytest.raises(ConfigError, match=r"model.onnx was deleted: its embeddings differ .* by .*, more than 1e-04"):
        write_onnx(tmp_path / "model.onnx", network, images)
    assert not list(tmp_path.glob("model*"))


def test_edited_cards_and_foreign_files_stay(run, tmp_path):
    (tmp_path / "model.onnx").write_text("somebody's own")
    run.export(tmp_path)
    assert "## License" in (tmp_path / "README.md").read_text()
    run.export(tmp_path)  # its own card is replaced without a word
    (tmp_path / "README.md").write_text("my words")
    with pytest.warns(UserWarning, match=r"README.md was changed, or not written by an export"):
        run.export(tmp_path)
    assert (tmp_path / "README.md").read_text() == "my words"
    assert "README" not in (tmp_path / "SHA256SUMS").read_text()
    assert (tmp_path / "model.onnx").read_text() == "somebody's own"


@pytest.mark.parametrize("name", ["model.safetensors", "preprocess.json", "SHA256SUMS"])
def test_files_that_no_export_wrote_are_refused(run, tmp_path, name):
    (tmp_path / name).write_text("somebody's own")
    with pytest.raises(ConfigError, match=rf"-o {tmp_path}: {tmp_path / name} was changed, .* another folder"):
        run.export(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "somebody's own"
    with pytest.raises(ConfigError, match="SHA256SUMS"):
        run.export(run.folder)  # the run's own folder
    run.export(tmp_path / "new")
    (tmp_path / "new" / name).write_text("somebody's own")
    with pytest.raises(ConfigError, match=rf"{name} was changed, or not written by an export"):
        run.export(tmp_path / "new")


def test_an_export_that_was_killed_is_written_again(run, tmp_path):
    for number in range(1, 8):
        with (
            patch("os.replace", Mock(wraps=os.replace, side_effect=[*[DEFAULT] * (number - 1), KeyboardInterrupt])),
            pytest.raises(KeyboardInterrupt),
        ):
            run.export(tmp_path / str(number))
        run.export(tmp_path / str(number))
        assert changed_files(tmp_path / str(number)) == []
        assert len(list((tmp_path / str(number)).iterdir())) == 4


@pytest.mark.parametrize(
    ("weights", "license", "text"),
    [
        ("IMAGENET1K_V1", "license: other", "weights `IMAGENET1K_V1` of `torchvision/resnet18`: their license holds"),
        (None, "license: unknown", "Trained from random weights"),
        ("/home/somebody/my.pth", "license: other", "weights `my.pth` of `torchvision/resnet18`: their license holds"),
    ],
)
def test_a_card_names_weights_but_no_folder(run, tmp_path, weights, license, text):
    model = run.recipe.model
    trunk = type(model.trunk)(name="torchvision/resnet18", **({} if weights is None else {"weights": weights}))
    data = run.recipe.data.model_copy(update={"name": "folder:/somebody/photos"})
    recipe = run.recipe.model_copy(update={"model": model.model_copy(update={"trunk": trunk}), "data": data})
    run.network.preprocessing = run.network.preprocessing.model_copy(update={"interpolation": "bicubic"})
    export.write_export(tmp_path, run.folder, recipe, run.network)
    words = (tmp_path / "README.md").read_text()
    assert "v2.Resize([8, 8], v2.InterpolationMode.BICUBIC, antialias=True)" in words
    assert license in words.splitlines()
    assert text in words
    assert "Trained on `folder` with" in words
    assert "somebody" not in words + (tmp_path / "preprocess.json").read_text()


def test_a_full_disk_is_named_by_an_export(run, tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    try:
        with pytest.raises(UnwritableError, match=r"model\.safetensors: cannot be written \(File too large\)"):
            run.export(tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_card_has_no_path_or_html(run, about, tmp_path):
    recipe = run.recipe.model_copy(update={"description": "<script>alert(1)</script> & more"})
    (tmp_path / "metrics.json").write_text(json.dumps({"recipe": "/home/somebody/<b>mine.toml@36"}))
    words = export.card(tmp_path, recipe, about)
    assert "# &lt;b&gt;mine@36" in words.splitlines()
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; more" in words
    assert "<" not in words
    assert "somebody" not in words


@pytest.mark.parametrize("side", [24, 40])
def test_code_in_a_card_keeps_exact_sizes(run, tmp_path, side):
    seen = run.network.preprocessing.model_copy(update={"image_size": 24, "crop": True, "resize": None})
    run.network.preprocessing = seen
    assert json.loads(run.export(tmp_path / "out").joinpath("preprocess.json").read_text())["exact_size_is_kept"]
    lines = re.findall(r"```python\n(.*?)```", (tmp_path / "out" / "README.md").read_text(), re.S)[0]
    pixels = torch.randint(256, (side, side), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    Image.fromarray(pixels.numpy()).save(tmp_path / "photo.png")
    names = {}
    exec(lines.replace("photo.jpg", str(tmp_path / "photo.png")), names)
    _, transform = seen.transforms()
    assert torch.equal(names["images"][0], transform(pixels[None]))


@pytest.mark.parametrize(
    ("best_epoch", "freeze", "by", "is_trained"),
    [
        (0, "none", "embeddings", False),
        (3, "trunk", "embeddings", True),
        (3, "trunk", "features", False),
        (3, ["*"], "features", False),
        (3, CutTable(until="head"), "features", False),
        (3, CutTable(until="last"), "features", True),
    ],
)
def test_a_card_says_that_nothing_was_trained(run, about, tmp_path, best_epoch, freeze, by, is_trained):
    (tmp_path / "metrics.json").write_text(json.dumps({"recipe": "mine", "best_epoch": best_epoch}))
    model = run.recipe.model.model_copy(update={"freeze": freeze})
    words = export.card(tmp_path, run.recipe.model_copy(update={"model": model}), {**about, "by": by})
    assert ("Nothing was trained; the trunk is" in words) is not is_trained
    assert ("Trained on `digits`" in words) is is_trained


def test_a_card_has_only_measured_numbers(run, about, tmp_path):

    def rows(**metrics):
        (tmp_path / "metrics.json").write_text(json.dumps({"recipe": "mine", **metrics}))
        words = export.card(tmp_path, run.recipe, about)
        assert words.startswith("---\n")
        return re.findall(r"^\| (.*) \|$", words.partition("## Metrics")[2], re.M)

    after = {"recall_at_1": 0.5, "nmi": None}
    both = rows(best_epoch=3, after=after, before={"recall_at_1": 0.25})
    assert both[0] == "on the test images | trained | before training"
    assert both[2:] == ["Recall@1 | 0.5000 | 0.2500", "NMI | blank | blank"]
    for metrics in ({"best_epoch": 3}, {"best_epoch": 0, "before": after}):  # with --quick; a head in closed form
        assert rows(after=after, **metrics) == ["on the test images |", "--- | ---", "Recall@1 | 0.5000", "NMI | blank"]


def _turned(generator):
    image = Image.fromarray(generator.integers(256, size=(8, 8), dtype=np.uint8))
    image.getexif()[0x0112] = 6  # by a quarter
    return image


def _palette(generator):
    image = Image.fromarray(generator.integers(256, size=(12, 9), dtype=np.uint8)).convert("P")
    image.info["transparency"] = 3
    return image


@pytest.mark.parametrize(
    "draw",
    [
        _turned,
        lambda generator: Image.fromarray(generator.integers(1 << 16, size=(12, 9)).astype(np.uint16)),
        lambda generator: Image.fromarray(generator.integers(256, size=(12, 9, 4), dtype=np.uint8), "RGBA"),
        _palette,
    ],
    ids=["turned", "sixteen bits", "transparent", "palette"],
)
def test_code_in_a_card_reads_all_images(exported, run, tmp_path, draw):
    file = tmp_path / "photo.png"
    image = draw(np.random.default_rng(0))
    image.save(file, exif=image.getexif())
    lines = re.findall(r"```python\n(.*?)```", (exported / "README.md").read_text(), re.S)[0]
    names = {}
    exec(lines.replace("photo.jpg", str(file)), names)
    _, transform = run.network.preprocessing.transforms()
    assert torch.equal(names["images"][0], transform(read_image(file, channels=1)))
    upright = torch.from_numpy(np.asarray(image.convert("L")))[None]
    assert draw is not _turned or not torch.equal(names["images"][0], transform(upright))


# The command


@pytest.mark.slow
def test_export_prints_the_graphs_largest_difference(pml_ext_command, runs, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime", reason="the extra [onnx] is not installed")

    def write(path, network, images, input_name):
        assert images.shape == (100, 1, 8, 8)
        assert input_name == "images"
        path.write_text("a graph")
        return 2e-7

    monkeypatch.setattr(export, "write_onnx", write)
    done = pml_ext_command("export", runs[0], "-o", tmp_path / "out", "--onnx")
    assert (done.returncode, done.stderr) == (0, "")
    assert "model.onnx: embeddings differ from the network's by 2.0e-07 at most" in done.stdout
    done = pml_ext_command("export", runs[0], "-o", tmp_path / "out", "--json")
    assert [file["file"] for file in json.loads(done.stdout)["files"]] == ["model.safetensors"]
    assert not (tmp_path / "out" / "model.onnx").exists()  # of the earlier export
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    done = pml_ext_command("export", runs[0], "-o", tmp_path / "other", "--onnx")
    assert done.returncode == 2
    assert 'pip install "pml-ext[onnx]"' in done.stderr
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
def test_an_export_names_its_files_and_folder(pml_ext_command, runs, tmp_path):
    done = pml_ext_command("export", runs[0], "--out", tmp_path / "out")
    assert done.stdout == f"model.safetensors, preprocess.json and README.md: {tmp_path / 'out'}\n"
    assert {"model.safetensors", "preprocess.json", "README.md"} <= {path.name for path in (tmp_path / "out").iterdir()}
    pml_ext_command("export", runs[0], "--out", tmp_path / "features", "--by", "features")
    about = json.loads((tmp_path / "features" / "preprocess.json").read_text())
    assert (about["by"], about["embedding_size"], about["hidden_sizes"]) == ("features", about["features"], None)
    assert f"to the {about['features']} features of the trunk" in (tmp_path / "features" / "README.md").read_text()
    done = pml_ext_command("export", tmp_path, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert f"{tmp_path}: no finished run (no recipe.toml in it); type: pml-ext train" in done.stderr


# Runs that are loaded


@pytest.fixture
def copied(runs, tmp_path):
    """A copy of a run, to damage."""
    return shutil.copytree(runs[0], tmp_path / "run", ignore=shutil.ignore_patterns("records", "tensorboard"))


def test_the_network_has_the_weights_of_the_run(runs):
    loaded = LoadedRun(runs[0], "cpu")
    state = torch.load(runs[0] / "checkpoints" / "model.pt", weights_only=True)
    for part, module in (("trunk", loaded.network.trunk), ("embedder", loaded.network.embedder)):
        assert all(torch.equal(value, state[part][name]) for name, value in module.state_dict().items())
    assert not loaded.network.training
    assert loaded.identity == hashlib.sha256((runs[0] / "checkpoints" / "model.pt").read_bytes()).hexdigest()[:16]
    assert loaded.identity != LoadedRun(runs[1], "cpu").identity
    (recipe,) = load_recipes(str(runs[0] / "recipe.toml")).values()
    assert loaded.recipe.as_dict() == recipe.as_dict()
    assert loaded.network.preprocessing.image_size == json.loads((runs[0] / "network.json").read_text())["image_size"]


@pytest.mark.parametrize("name", ["recipe.toml", "network.json", "checkpoints/model.pt"])
def test_a_missing_file_comes_with_a_remedy(copied, name):
    (copied / name).unlink()
    with pytest.raises(DataError, match=rf"^{copied / name} is missing; .*pml-ext (report|train)|--resume"):
        LoadedRun(copied, "cpu")
    (copied / "metrics.json").unlink()
    with pytest.raises(
        DataError,
        match=rf"^{copied}: no finished run \(no {name} in it\); type: pml-ext train RECIPE --out {copied} --resume$",
    ):
        LoadedRun(copied, "cpu")


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("network.json", '"channels": 1', '"channels": 2'),
        ("network.json", '"features": ', '"features": 1'),
        ("recipe.toml", "\n[run", "\n[ran"),
        ("recipe.toml", "seed = 0", "seed = 7"),
    ],
)
def test_a_changed_file_is_damage(copied, name, old, new):
    file = copied / name
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(DataError, match=str(file)) as caught:
        LoadedRun(copied, "cpu")
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("without_report")
def test_a_learned_metric_has_the_losss_weights(runs, tmp_path):
    assert LoadedRun(runs[0], "cpu").metric is None
    train(
        "pddm/digits",
        tmp_path / "pddm",
        overrides=typed(
            [
                "schedule.epochs=7",
                "schedule.milestones=[6]",
                "sampler.iterations=2",
                "model.trunk.width=8",
                "evaluation.baselines=false",
            ]
        ),
        device="cpu",
    )
    metric = LoadedRun(tmp_path / "pddm", "cpu").metric
    assert isinstance(metric, registry.get("pddm", "distance").cls)
    assert not metric.training
    state = torch.load(tmp_path / "pddm" / "checkpoints" / "model.pt", weights_only=True)["loss"]
    for name, value in metric.state_dict().items():
        assert torch.equal(value, next(state[key] for key in state if key.endswith(f"distance.{name}")))


# Measurements


BETWEEN = ("<!-- measured -->", "<!-- end of measured -->")


def measurement(threshold=0.25, by="embeddings"):
    return Measurement(
        title="Known & new",
        text="Said <briefly>.",
        by=by,
        titles={"threshold": "Threshold"},
        values={"threshold": threshold, "kind": "center", "classes": 3},
    )


@pytest.fixture
def measured(runs, tmp_path):
    """A run with a report in which nothing was measured yet."""
    run = shutil.copytree(runs[0], tmp_path / "a run", ignore=lambda *_: ["collection"])
    text = "before " + render("measured", measured=[]).strip() + " after"
    replace_file(run, "report.html", lambda path: path.write_text(text, "utf-8"))
    return run


def test_a_measurement_is_in_metrics_and_report(measured):
    before = json.loads((measured / "metrics.json").read_text())
    add_measurement(measured, "known_or_new", measurement(0.5))
    add_measurement(measured, "another", measurement(7))
    add_measurement(measured, "known_or_new", measurement(0.25))
    metrics = json.loads((measured / "metrics.json").read_text())
    added = metrics.pop("measured")
    assert metrics == before
    assert added["known_or_new"]["values"] == {"threshold": 0.25, "kind": "center", "classes": 3}
    assert [*added] == ["known_or_new", "another"]
    report = (measured / "report.html").read_text()
    assert report.startswith(f"before {BETWEEN[0]}")
    assert report.endswith(f"{BETWEEN[1]} after")
    assert report.count("<h2>Known &amp; new</h2>") == 2
    assert '<th scope="row">Threshold</th><td>0.25</td>' in report
    assert "Said &lt;briefly&gt;." in report
    assert changed_files(measured) == []


def test_an_export_has_the_measurements_of_its_output(measured, tmp_path):
    run = load_run(measured, "cpu")
    run.export(tmp_path / "without")
    assert "measured" not in json.loads((tmp_path / "without" / "preprocess.json").read_text())
    add_measurement(measured, "known_or_new", measurement())
    for by in ("embeddings", "features"):
        run.export(tmp_path / by, by=by)
    assert json.loads((tmp_path / "embeddings" / "preprocess.json").read_text())["measured"] == {
        "known_or_new": {"threshold": 0.25, "kind": "center", "classes": 3}
    }
    card = (tmp_path / "embeddings" / "README.md").read_text()
    assert "## Known & new\n\nSaid <briefly>.\n" in card
    assert "| Threshold | 0.25 |" in card
    assert "measured" not in json.loads((tmp_path / "features" / "preprocess.json").read_text())
    assert "Known & new" not in (tmp_path / "features" / "README.md").read_text()


def test_a_report_that_was_changed_by_hand_stays(measured):
    (measured / "report.html").write_text("mine " + "".join(BETWEEN))
    add_measurement(measured, "known_or_new", measurement())
    assert (measured / "report.html").read_text() == "mine " + "".join(BETWEEN)
    assert "measured" in json.loads((measured / "metrics.json").read_text())


def test_faults_leave_the_metrics_unchanged(measured):
    before = (measured / "metrics.json").read_bytes()
    with locked_folder(measured), pytest.raises(ConfigError, match="is being written by another run"):
        add_measurement(measured, "known_or_new", measurement())
    assert (measured / "metrics.json").read_bytes() == before
    (measured / "metrics.json").write_bytes(before + b" ")
    with pytest.raises(DataError, match="not the file that the run wrote"):
        add_measurement(measured, "known_or_new", measurement())
    with pytest.raises(DataError, match="the measurement 'known_or_new' is damaged"):
        measurements_of({"measured": {"known_or_new": {"title": 1}}})
