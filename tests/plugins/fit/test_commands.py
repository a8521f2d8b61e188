"""The command: data in which there is nothing to learn."""

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from pml_ext.errors import ConfigError, NothingToLearnError
from pml_ext_fit import selection
from pml_ext_fit.candidates import last_blocks
from pml_ext_fit.commands import fit
from pml_ext_fit.images import describe_images
from pml_ext_train.files import read_json
from pml_ext_train.records.run_files import tables_of_run

from ...overrides import typed

QUICK = {"quick": True, "device": "cpu"}
TRAINED = {**QUICK, "overrides": typed(["loss.beta=50"])}  # a head is trained, as the user says


@pytest.fixture
def vectors_apart(tmp_path):
    """A file of two classes of vectors around two axes."""
    generator = np.random.default_rng(0)
    rows = generator.normal(0, 0.01, size=(40, 8)).astype(np.float32)
    rows[:20, 0] += 1
    rows[20:, 1] += 1
    file = tmp_path / "apart.npz"
    np.savez(file, embeddings=rows, labels=np.repeat(["a", "b"], 20))
    return file


@pytest.fixture
def images_apart(tmp_path):
    """A folder of two classes of images, red and blue ones."""
    generator = np.random.default_rng(0)
    for name, color in (("red", (220, 20, 20)), ("blue", (20, 20, 220))):
        (tmp_path / "two" / name).mkdir(parents=True)
        for number in range(8):
            pixels = np.clip(color + generator.normal(0, 5, size=(32, 32, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "two" / name / f"{number}.png")
    return tmp_path / "two"


def left_in(folder):
    files = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    return sorted(name for name in files if not name.startswith("tensorboard"))


def test_separated_vectors_are_delivered_unchanged(vectors_apart, capsys, out):
    fit(vectors_apart, out=out, **TRAINED)
    assert "delivers vectors, unwhitened: no pair of the batches adds to the loss" in capsys.readouterr().err
    model = tables_of_run(out)["model"]
    assert (model["embedder"], model["embedding_size"]) == ("none", 8)
    metrics = read_json(out / "metrics.json")
    assert (metrics["epochs"], metrics["after"]["recall_at_1"]) == (0, 1.0)
    report = (out / "report.html").read_text()
    assert "vectors, unwhitened: the classes are so far apart" in report
    assert not [name for name in left_in(out) if "within" in name or "before" in name]
    files = left_in(out)

    (out / "metrics.json").unlink()  # as if it was killed in its test
    fit(vectors_apart, out=out, resume=True, **TRAINED)
    assert "goes on with what was chosen before: vectors, unwhitened" in capsys.readouterr().err
    assert left_in(out) == files
    again = read_json(out / "metrics.json")
    assert again["after"] == metrics["after"]


@pytest.mark.parametrize("keeps", ["everything", "nothing"])
def test_a_kill_when_nothing_was_to_learn(vectors_apart, monkeypatch, keeps, out):
    """It is found out again: before the failed run was removed, and before it was said what comes in its place."""

    def killed(folder):
        if keeps == "nothing":
            for path in sorted(folder.rglob("*"), reverse=True):
                if path.name != ".lock":
                    path.rmdir() if path.is_dir() else path.unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("pml_ext_fit.workflows.remove_run", killed)
        with pytest.raises(KeyboardInterrupt):
            fit(vectors_apart, out=out, **TRAINED)
    fit(vectors_apart, out=out, resume=True, **TRAINED)
    assert read_json(out / "metrics.json")["epochs"] == 0


def test_a_users_own_network_is_not_replaced(vectors_apart, tmp_path):
    with pytest.raises(NothingToLearnError, match="the loss was 0 in all 20 iterations"):
        fit(vectors_apart, out=tmp_path / "run", overrides=typed(["model.embedder=mlp"]), **QUICK)
    assert not (tmp_path / "run" / "metrics.json").exists()


def test_separated_vectors_are_chosen_unchanged(vectors_apart, capsys, out):
    fit(vectors_apart, out=out, **QUICK)
    told = capsys.readouterr().err
    assert "the items of 2 training classes held out once, in 4 folds" in told
    assert "trained head: left out, since no pair of the vectors adds to the loss" in told
    assert "the loss is 0 in all of the first" not in told  # which says the same
    assert tables_of_run(out)["model"]["embedder"] == "none"
    assert not (out / "trials").exists()


@pytest.fixture
def digits(tmp_path):
    """A file of digits, whose pixels are vectors."""
    given = load_digits()
    file = tmp_path / "digits.npz"
    np.savez(file, embeddings=given.data[:400].astype(np.float32), labels=given.target[:400])
    return file


def test_a_vector_head_is_tried_for_tested_classes(digits, capsys, out):
    few = typed(["schedule.epochs=1", "sampler.iterations=2"])
    fit(digits, out=out, quick=True, overrides=few, device="cpu")
    told = capsys.readouterr().err
    assert "the items of 10 training classes held out once, in 4 folds" in told
    assert "  trained head, fold 1: " in told
    choice = read_json(out / "choice.json")
    assert choice["title"] in told
    report = (out / "report.html").read_text()
    assert f"Time: trials {choice['seconds']:.1f} s, " in report
    assert "<h1>digits.npz</h1>" in report


UNUSED = ("schedule.epochs", "optimizer.lr", "data.augment.flip", "sampler.name", "engine.micro_batch")


@pytest.mark.parametrize("unused", [*UNUSED, "--data"])
@pytest.mark.parametrize("untrained", ["closed_form", "no_labels"])
def test_options_that_nothing_uses_are_refused(digits, tmp_path, unused, untrained):
    options = {"overrides": typed([f"{unused}=1"])}
    text = f"--set {unused}=1: only training uses {unused}, and"
    if unused == "--data":
        options = {"data": Path("nowhere")}
        text = "--data nowhere: only the paths in a table are relative to it"
    with pytest.raises(ConfigError, match=text):
        fit(digits, out=tmp_path / "run", device="cpu", **options, **{untrained: True})
    assert not (tmp_path / "run").exists()


def test_vectors_of_new_classes_are_not_trained(digits, capsys, out):
    fit(digits, out=out, overrides=typed(["data.split=class"]), device="cpu", quick=True)
    told = capsys.readouterr().err
    assert "each of 5 training classes held out once, in 2 folds" in told
    assert "trained head, fold" not in told
    assert tables_of_run(out)["model"]["embedder"] in ("none", "pca", "within-class")


@pytest.mark.slow
def test_separated_images_get_a_random_network(images_apart, monkeypatch, capsys, out):
    monkeypatch.setitem(sys.modules, "timm", None)
    fit(images_apart, out=out, **QUICK)
    assert "delivers features of a small network with random weights: no pair" in capsys.readouterr().err
    metrics = read_json(out / "metrics.json")
    assert (metrics["epochs"], metrics["after"]["recall_at_1"]) == (0, 1.0)
    assert tables_of_run(out)["model"]["trunk"]["weights"] == "random"


@pytest.mark.slow
@pytest.mark.usefixtures("weights")
def test_images_that_are_apart_get_frozen_features(images_apart, monkeypatch, out):
    decision = selection.Decision(last_blocks(describe_images(images_apart)), "as found")
    monkeypatch.setattr(selection, "choose", lambda *_: decision)
    overrides = typed(["loss.name=pml/triplet-margin", "schedule.epochs=1"])
    monkeypatch.setattr("pml_ext_fit.fitting._check_nothing_is_chosen", lambda *_: None)
    fit(images_apart, out=out, overrides=[*overrides, *typed(["loss.margin=-3"])], **QUICK)
    metrics = read_json(out / "metrics.json")
    assert metrics["epochs"] == 0
    assert "Frozen features: the classes are so far apart" in (out / "report.html").read_text()
    assert tables_of_run(out)["model"]["freeze"] == "trunk"
