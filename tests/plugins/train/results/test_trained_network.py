"""A finished run, loaded from its folder, and what tools measure on it."""

import hashlib
import json
import shutil

import pytest
import torch

from pml_ext import load_run, registry
from pml_ext.errors import ConfigError, DataError
from pml_ext_train.files import locked_folder
from pml_ext_train.files.checksums import changed_files, replace_file
from pml_ext_train.launch.launch import train
from pml_ext_train.recipe import load_recipes
from pml_ext_train.report import render
from pml_ext_train.results.measurements import Measurement, add_measurement, measurements_of
from pml_ext_train.results.trained_network import LoadedRun

from ....overrides import typed


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
    text = rf"^{copied}: no finished run \(no {name} in it\); type: pml-ext train RECIPE --out {copied} --resume$"
    with pytest.raises(DataError, match=text):
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
    quick = ("schedule.epochs=7", "schedule.milestones=[6]", "sampler.iterations=2", "model.trunk.width=8")
    train("pddm/digits", tmp_path / "pddm", overrides=typed([*quick, "evaluation.baselines=false"]), device="cpu")
    metric = LoadedRun(tmp_path / "pddm", "cpu").metric
    assert isinstance(metric, registry.get("pddm", "distance").cls)
    assert not metric.training
    state = torch.load(tmp_path / "pddm" / "checkpoints" / "model.pt", weights_only=True)["loss"]
    for name, value in metric.state_dict().items():
        assert torch.equal(value, next(state[key] for key in state if key.endswith(f"distance.{name}")))


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
    about = json.loads((tmp_path / "embeddings" / "preprocess.json").read_text())
    assert about["measured"] == {"known_or_new": {"threshold": 0.25, "kind": "center", "classes": 3}}
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
