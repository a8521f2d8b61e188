"""Heads in closed form, fitted in place of training, before it and after it; and runs that train nothing."""

import json

import pytest
import torch

from pml_ext import ConfigError, TotalWhitening, WithinClassWhitening
from pml_ext_train.launch.launch import draw_report, train
from pml_ext_train.results.verdict import delivered_phase, shown_phases
from pml_ext_train.training import open_run

from ....overrides import typed
from .whole_runs import Ear

FROZEN = ["model.freeze=trunk", "model.trunk.weights=random"]
FAST = ["schedule.epochs=2", "sampler.iterations=3"]


def finished(folder, *overrides):
    """Train digits, and return the finished run and its metrics."""
    train("pml/multi-similarity/digits", out=folder, overrides=typed([*FAST, *overrides]))
    return open_run(folder, 0, "cpu"), json.loads((folder / "metrics.json").read_text())


def whitened_features(view, size, shrinkage=0.6):
    return WithinClassWhitening(shrinkage, size).fit(view.embeddings("train", "trunk"), view.true_labels("train"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A finished run without any head in closed form, and its metrics."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pml_ext_train.results.finish.write_run_report", lambda *_: None)
        return finished(tmp_path_factory.mktemp("plain") / "run")


@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize(("settings", "shrinkage"), [([], 0.6), (["model.shrinkage=0.3"], 0.3)])
def test_a_within_class_head_is_not_trained(tmp_path, settings, shrinkage):
    view, metrics = finished(
        tmp_path / "run", *FROZEN, "model.embedder=within-class", "model.embedding_size=16", *settings
    )
    torch.testing.assert_close(
        view.embedder.weight, whitened_features(view, 16, shrinkage).weight, atol=1e-4, rtol=1e-4
    )
    assert metrics["best_epoch"] == 0
    assert metrics["before"] == pytest.approx(metrics["after"])
    assert metrics["within_class"]["recall_at_1"] > 0.5


@pytest.mark.usefixtures("without_report")
def test_components_with_shrinkage_are_total_whitening(tmp_path):
    view, _ = finished(
        tmp_path / "run", *FROZEN, "model.embedder=pca", "model.embedding_size=16", "model.shrinkage=0.6"
    )
    torch.testing.assert_close(
        view.embedder.weight,
        TotalWhitening(0.6, 16).fit(view.embeddings("train", "trunk")).weight,
        atol=1e-4,
        rtol=1e-4,
    )


@pytest.mark.usefixtures("without_report")
def test_training_starts_from_the_whitening(plain, tmp_path):
    _, fitted = finished(tmp_path / "fitted", *FROZEN, "model.embedder=within-class")
    _, metrics = finished(tmp_path / "run", "model.start=within-class")
    _, random = plain
    assert metrics["before"] == pytest.approx(fitted["after"], abs=1e-3)
    assert metrics["before"]["map_at_r"] != pytest.approx(random["before"]["map_at_r"], abs=1e-3)
    assert metrics["best_epoch"] > 0


@pytest.mark.nightly
def test_a_refitted_head_replaces_the_trained_one(plain, tmp_path):
    untouched, without = plain
    view, metrics = finished(tmp_path / "run", "model.refit=within-class")
    assert metrics["trained_head"] == pytest.approx(without["after"])  # training is the same
    assert torch.equal(view.trunk.state_dict()["1.weight"], untouched.trunk.state_dict()["1.weight"])
    torch.testing.assert_close(view.embedder.weight, whitened_features(view, 64).weight, atol=1e-4, rtol=1e-4)
    assert "features" in metrics
    assert "head fitted again" in draw_report(tmp_path / "run").read_text()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (["model.embedding_size=5000"], "embedding_size: found 5000"),
        (["data.labels=instance", "data.views=2", "sampler={name='shuffle', batch_size=40}"], "have no classes"),
        (
            ["model.shrinkage=auto", "data.relation={name='near', within=1}"],
            "holds out classes, which a relation has not",
        ),
    ],
)
def test_impossible_refits_are_refused_before_training(tmp_path, settings, text):
    with pytest.raises(ConfigError, match=text):
        train(
            "pml/multi-similarity/digits",
            out=tmp_path / "run",
            overrides=typed([*FAST, "model.refit=within-class", *settings]),
        )
    assert not list((tmp_path / "run" / "checkpoints").glob("*.pt"))


def test_a_useless_head_is_reported_with_its_remedy(tmp_path, monkeypatch):
    """It is in the metrics, and in the first lines of the report; the head is made useless here."""
    monkeypatch.setattr(
        "pml_ext_train.training.closed_form.fit_within_classes",
        lambda view, features, shrinkage, size=None: torch.nn.Linear(features.shape[1], size or features.shape[1]),
    )
    _, metrics = finished(tmp_path / "run", *FROZEN, "model.embedder=within-class", "model.embedding_size=1")
    (text,) = [text for text in metrics["warnings"] if "--by features" in text]
    assert text.startswith("The features before the head are better than the embeddings: Recall@1 is ")
    report = (tmp_path / "run" / "report.html").read_text()
    assert report.count("The features before the head are better") == 1
    assert report.index("--by features") < report.index("<table")


# Runs that train nothing


SETTINGS = [
    "model.freeze=trunk",
    "model.trunk.weights=random",
    "model.embedder=none",
    "schedule.milestones=[]",
    "model.trunk.width=8",
    "model.embedding_size=32",
    "schedule.name=constant",
    "evaluation.figures=few",
]


def run(out, *settings, **more):
    ear = Ear()
    (metrics,) = train("cbml/digits", out, overrides=typed([*SETTINGS, *settings]), device="cpu", listener=ear, **more)
    return metrics, ear.lines


def test_it_is_not_called_trained(tmp_path):
    metrics, lines = run(tmp_path / "run", "schedule.epochs=8")
    assert metrics["epochs"] == 0
    assert not [line for line in lines if "trained network" in line.replace("untrained network", "")]
    page, _, settings = (tmp_path / "run" / "report.html").read_text().partition("The recipe with all its settings")
    assert "Nothing was trained: the embeddings are the raw features. Recipe cbml/digits, seed 0" in page
    for text in ("epoch 0", "of 8", "--resume", "train longer", ">trained network"):
        assert text not in page
    assert "epochs = 8" in settings

    again, lines = run(tmp_path / "run", "schedule.epochs=16", resume=True)
    assert lines == [f"cbml/digits in {tmp_path}/run: this run trains nothing, so more epochs change nothing"]
    assert again["after"] == metrics["after"]
    with pytest.raises(ConfigError, match="run: the run there trains nothing, .*; choose another --out"):
        train("cbml/digits", tmp_path / "run", overrides={"schedule.epochs": 16}, device="cpu", resume=True)


def test_its_figures_do_not_tell_of_training(tmp_path, monkeypatch):
    """What is drawn: each of the table's phases once, and the embeddings once."""
    curves = []
    maps = []
    monkeypatch.setattr("pml_ext_train.report.figures.recall_curve", lambda phases: curves.append(phases))
    monkeypatch.setattr("pml_ext_train.report.figures.projections", lambda parts, *_, **__: maps.append(parts))
    metrics, _ = run(tmp_path / "run", "schedule.epochs=8", "evaluation.figures=all")
    (phases,) = curves
    assert [*phases] == [*shown_phases(metrics).values()]
    assert phases["raw pixels"][1] == metrics["raw"]["recall_at_1"]
    assert not any(title.startswith("trained") for title in phases)
    (parts,) = maps
    assert [*parts] == ["test images"]
    page = (tmp_path / "run" / "report.html").read_text().partition("The recipe with all its settings")[0]
    assert "Recall@K" in page
    for text in ("before and after training", " 0.0 s", "Training images as the network saw them"):
        assert text not in page
    assert page.count("<mark>") == 1
    assert f"<mark>{shown_phases(metrics)[delivered_phase(metrics)]}</mark>" in page
    assert delivered_phase(metrics) == "frozen"
