"""A run that has nothing to train: features as they are."""

import pytest

from pml_ext.errors import ConfigError
from pml_ext_train.launch.launch import train
from pml_ext_train.results.verdict import delivered_phase, shown_phases

from ....overrides import typed
from .whole_runs import Ear

SETTINGS = ["model.freeze=trunk", "model.trunk.weights=random", "model.embedder=none", "schedule.milestones=[]"]
SETTINGS += ["model.trunk.width=8", "model.embedding_size=32", "schedule.name=constant", "evaluation.figures=few"]


def run(out, *settings, **more):
    ear = Ear()
    (metrics,) = train("cbml/digits", out, overrides=typed([*SETTINGS, *settings]), device="cpu", listener=ear, **more)
    return metrics, ear.lines


def test_it_is_not_called_trained(tmp_path):
    metrics, lines = run(tmp_path / "run", "schedule.epochs=8")
    assert metrics["epochs"] == 0
    assert not [line for line in lines if "trained network" in line.replace("untrained network", "")]
    report = (tmp_path / "run" / "report.html").read_text()
    page, _, settings = report.partition("The recipe with all its settings")
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
