"""The command: what it delivers, fine-tunes, resumes and refuses."""

import json
import os
import signal
import sys
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import tomli_w
from PIL import Image
from sklearn.datasets import load_digits

from pml_ext.errors import ConfigError, DataError, MissingExtraError, NothingToLearnError, StoppedError
from pml_ext_fit import fine_tuning, resume, selection
from pml_ext_fit.candidates import SMALL, features_of_images, last_blocks, small_network
from pml_ext_fit.commands import fit
from pml_ext_fit.framing import Framing
from pml_ext_fit.images import describe_images
from pml_ext_fit.timing import PerImage
from pml_ext_fit.trunk import BLOCKS_FIRST, LITE0, PRETRAINED
from pml_ext_train.files import locked_folder, read_json, replace_file
from pml_ext_train.launch import launch
from pml_ext_train.recipe import load_recipe, reported_phases
from pml_ext_train.records.run_files import remove_run, tables_of_run

from ...overrides import typed
from .helpers import workplace

QUICK = {"quick": True, "device": "cpu"}
TRAINED = {**QUICK, "overrides": typed(["loss.beta=50"])}  # a head is trained, as the user says


@pytest.fixture
def vectors_apart(tmp_path):
    """A file of two classes of vectors around two axes."""
    rows = np.random.default_rng(0).normal(0, 0.01, size=(40, 8)).astype(np.float32)
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
    return {path for path in folder.rglob("*") if path.is_file() and "tensorboard" not in path.parts}


def test_separated_vectors_are_delivered_unchanged(vectors_apart, capsys, out):
    fit(vectors_apart, out=out, **TRAINED)
    assert "delivers vectors, unwhitened: no pair of the batches adds to the loss" in capsys.readouterr().err
    model = tables_of_run(out)["model"]
    assert (model["embedder"], model["embedding_size"]) == ("none", 8)
    metrics = read_json(out / "metrics.json")
    assert (metrics["epochs"], metrics["after"]["recall_at_1"]) == (0, 1.0)
    assert "vectors, unwhitened: the classes are so far apart" in (out / "report.html").read_text()
    files = left_in(out)
    assert not [file for file in files if "within" in file.name or "before" in file.name]

    (out / "metrics.json").unlink()  # as if it was killed in its test
    fit(vectors_apart, out=out, resume=True, **TRAINED)
    assert "goes on with what was chosen before: vectors, unwhitened" in capsys.readouterr().err
    assert left_in(out) == files
    assert read_json(out / "metrics.json")["after"] == metrics["after"]


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_kill_when_nothing_was_to_learn(vectors_apart, monkeypatch, is_removed, out):
    """It is found out again: before the failed run was removed, and before it was said what comes in its place."""

    def killed(folder):
        if is_removed:
            remove_run(folder)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("pml_ext_fit.workflows.remove_run", killed)
        with pytest.raises(KeyboardInterrupt):
            fit(vectors_apart, out=out, **TRAINED)
    fit(vectors_apart, out=out, resume=True, **TRAINED)
    assert read_json(out / "metrics.json")["epochs"] == 0


def test_a_users_own_network_is_not_replaced(vectors_apart, out):
    with pytest.raises(NothingToLearnError, match="the loss was 0 in all 20 iterations"):
        fit(vectors_apart, out=out, overrides=typed(["model.embedder=mlp"]), **QUICK)
    assert not (out / "metrics.json").exists()


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
    fit(digits, out=out, quick=True, overrides=typed(["schedule.epochs=1", "sampler.iterations=2"]), device="cpu")
    told = capsys.readouterr().err
    assert "the items of 10 training classes held out once, in 4 folds" in told
    assert "  trained head, fold 1: " in told
    choice = read_json(out / "choice.json")
    assert choice["title"] in told
    report = (out / "report.html").read_text()
    assert f"Time: trials {choice['seconds']:.1f} s, " in report
    assert "<h1>digits.npz</h1>" in report


KEYS = ("schedule.epochs", "optimizer.lr", "data.augment.flip", "sampler.name", "engine.micro_batch")
UNUSED = [({"overrides": typed([f"{key}=1"])}, f"--set {key}=1: only training uses {key}, and") for key in KEYS]
UNUSED += [({"data": Path("nowhere")}, "--data nowhere: only the paths in a table are relative to it")]


@pytest.mark.parametrize(("options", "text"), UNUSED, ids=[*KEYS, "--data"])
@pytest.mark.parametrize("untrained", ["closed_form", "no_labels"])
def test_options_that_nothing_uses_are_refused(digits, out, options, text, untrained):
    with pytest.raises(ConfigError, match=text):
        fit(digits, out=out, device="cpu", **options, **{untrained: True})
    assert not out.exists()


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


@pytest.mark.nightly
@pytest.mark.usefixtures("weights")
def test_images_that_are_apart_get_frozen_features(images_apart, monkeypatch, out):
    decision = selection.Decision(last_blocks(describe_images(images_apart)), "as found")
    monkeypatch.setattr(selection, "choose", lambda *_: decision)
    overrides = typed(["loss.name=pml/triplet-margin", "schedule.epochs=1", "loss.margin=-3"])
    monkeypatch.setattr("pml_ext_fit.fitting._check_nothing_is_chosen", lambda *_: None)
    fit(images_apart, out=out, overrides=overrides, **QUICK)
    assert read_json(out / "metrics.json")["epochs"] == 0
    assert "Frozen features: the classes are so far apart" in (out / "report.html").read_text()
    assert tables_of_run(out)["model"]["freeze"] == "trunk"


@pytest.fixture
def quick_clock(monkeypatch):
    """Embedding an image takes half a second."""
    monkeypatch.setattr(fine_tuning, "seconds_per_image", lambda *_: PerImage(0.1, 0.5))


def chosen(kind, images):
    candidate = kind(images)
    return selection.Decision(candidate, f"The {candidate.title}, chosen")


@pytest.mark.usefixtures("weights")
@pytest.mark.parametrize(("kind", "epochs"), [(features_of_images, 13), (last_blocks, 12)])
def test_fine_tuning_follows_features_and_last_blocks(images, photos, quick_clock, kind, epochs):
    lines = []
    place = workplace(None, typed([f"schedule.epochs={epochs}"]), lines.append)
    found = fine_tuning.continued(chosen(kind, images), images, LITE0, place)
    recipe = load_recipe(found.recipe, found.settings | {"schedule.epochs": epochs})
    assert [stage.epochs for stage in recipe.all_stages()] == [8, epochs - 8]
    assert recipe.all_stages()[0].freeze.until == "blocks.5"
    assert recipe.data.name == f"folder:{photos}"
    model = recipe.model
    assert (model.freeze, model.freeze_batch_norm, model.start) == ("none", True, "within-class")
    assert model.refit == "within-class"
    assert {"frozen", "blocks", "after", "features"} <= set(reported_phases(recipe))
    seconds = 3 * (epochs - 8) * 20 * recipe.sampler.batch_size * 0.5
    then = f"first the last blocks for 8 epochs, then the whole network for {epochs - 8}"
    assert lines == [f"fine-tunes: {then}; about {round(seconds / 60)} more minutes"]
    assert recipe.description == f"The {found.title}, chosen. Fine-tuned: {then}"


def test_a_small_network_is_whole_already(images):
    small = chosen(small_network, images)
    lines = []
    assert fine_tuning.continued(small, images, LITE0, workplace(None, say=lines.append)) == small.choice()
    assert "--fine-tune changes nothing here" in lines[0]


def test_what_cannot_be_fine_tuned_is_one_line(photos, tmp_path, monkeypatch, out):
    with pytest.raises(ConfigError, match="--fine-tune is for images, and .*mine.npz has vectors"):
        fit(tmp_path / "mine.npz", out=out, fine_tune=True)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="leave out torchrun, or type: pml-ext train fit/photographs-fine-tuned"):
        fit(photos, out=out, fine_tune=True)
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingExtraError, match="photos"):
        fit(photos, out=out, fine_tune=True)
    assert not out.exists()


@pytest.mark.usefixtures("weights")
def test_too_few_epochs_are_refused_before_the_trials(photos, out, monkeypatch):
    monkeypatch.setattr(selection, "choose", None)
    with pytest.raises(ConfigError, match=r"--set schedule.epochs=8: .*found 8, but the stages alone have 8 epochs"):
        fit(photos, out=out, fine_tune=True, overrides=typed(["schedule.epochs=8"]))
    assert not out.exists()


@pytest.mark.usefixtures("weights")
def test_both_stages_keep_their_own_epochs(photos, quick_clock, out, monkeypatch, images):
    tried = []

    def choose(images, trunk, place, fine_tune):
        assert fine_tune
        tried.append(place.overrides)
        return selection.Decision(features_of_images(images, Framing(squash=True)))

    begun = []
    monkeypatch.setattr(selection, "choose", choose)
    monkeypatch.setattr("pml_ext_fit.workflows.train", lambda *_, **given: begun.append(given["overrides"]) or [])
    overrides = typed(["schedule.epochs=30", "sampler.iterations=7"])
    fit(photos, out=out, fine_tune=True, overrides=overrides)
    assert tried == [overrides[1:]]
    assert begun[0][-2:] == overrides
    recipe = load_recipe(BLOCKS_FIRST, begun[0])
    assert recipe.data.images.squash
    assert recipe.sampler.settings["m"] == images.batch_of(images.training_classes)[1]
    assert recipe.model.embedder == "linear"


@pytest.mark.usefixtures("weights")
def test_a_run_is_resumed_as_it_was_begun(photos, tmp_path, monkeypatch):
    begun = []
    monkeypatch.setattr("pml_ext_fit.workflows.train", lambda recipe, **_: begun.append(recipe) or [])
    monkeypatch.setattr(selection, "choose", None)
    settings = (f'data.name="folder:{photos}"', "model.freeze=trunk", "model.refit=none")
    plain = begun_run(tmp_path / "plain", PRETRAINED, settings)
    with pytest.raises(ConfigError, match=r"plain was begun without --fine-tune; resume it without, or choose another"):
        fit(photos, out=plain, resume=True, fine_tune=True)
    tuned = begun_run(tmp_path / "tuned", BLOCKS_FIRST, settings[:1])
    fit(photos, out=tuned, resume=True, fine_tune=True)
    assert begun == [str(tuned / "recipe.toml")]
    small = begun_run(tmp_path / "small", SMALL, settings[:1])  # which had won, and is trained whole
    fit(photos, out=small, resume=True, fine_tune=True)
    assert begun[1] == str(small / "recipe.toml")


def begun_run(folder, name, settings):
    folder.mkdir()
    tables = load_recipe(name, typed(settings)).as_dict()
    (folder / "recipe.toml").write_text(tomli_w.dumps({**tables, "run": {"recipe": name, "seed": 0, "plugins": {}}}))
    return folder


@pytest.mark.nightly
@pytest.mark.usefixtures("weights")
def test_a_fine_tuned_run_reports_its_stages(photos, images, quick_clock, monkeypatch, pml_ext_command, out):
    monkeypatch.setattr(selection, "choose", lambda *_, **__: chosen(features_of_images, images))
    few = ["schedule.epochs=9", "sampler.iterations=1", "data.images.crop=32", "data.images.resize=32"]
    few += ["evaluation.training_images=0", "evaluation.figures=few", "track=[]"]
    options = [word for setting in few for word in ("--set", setting)]
    done = pml_ext_command("fit", photos, "--fine-tune", "--out", out, "--device", "cpu", *options)
    assert done.returncode == 0, done.stderr
    assert "then the whole network for 1; about" in done.stderr
    metrics = json.loads((out / "metrics.json").read_text())
    assert {"frozen", "pca", "before", "blocks", "trained_head", "after", "features"} <= set(metrics)
    assert metrics["blocks"]["map_at_r"] != metrics["before"]["map_at_r"]
    assert metrics["warnings"] == []  # batch norms are frozen
    report = (out / "report.html").read_text()
    for text in ("fine-tuned network", "Fine-tuned: first the last blocks for 8 epochs"):
        assert text in report
    assert "Training the whole network has" in done.stdout or "The trained network is behind the" in done.stdout
    assert "verdict" not in metrics


def test_a_resumed_run_keeps_what_was_chosen(photos, tmp_path):
    lines = []
    assert resume.begun_run(tmp_path, f"folder:{photos}", lines.append) is None
    file = tmp_path / "recipe.toml"
    file.write_text(f'[data]\nname = "folder:{photos}"\n[run]\nrecipe = "fit/photographs"\nseed = 1\n')
    assert resume.begun_run(tmp_path, f"folder:{photos}", lines.append)["run"]["recipe"] == "fit/photographs"
    with pytest.raises(ConfigError, match="holds a run of folder:.*, not of folder:others"):
        resume.begun_run(tmp_path, "folder:others", lines.append)
    assert lines == []


@pytest.mark.parametrize("change", ["lr = 0.2", "lr = "])
def test_a_damaged_recipe_is_not_taken(tmp_path, change):
    text = 'lr = 0.1\n[data]\nname = "folder:photos"\n[run]\nseed = 0\n'
    replace_file(tmp_path, "recipe.toml", lambda file: file.write_text(text))
    (tmp_path / "recipe.toml").write_text(text.replace("lr = 0.1", change))
    lines = []
    assert resume.begun_run(tmp_path, "folder:photos", lines.append) is None
    assert lines == [f"{tmp_path / 'recipe.toml'} is damaged; it is written again"]


@pytest.mark.usefixtures("weights")
def test_a_killed_run_resumes_with_its_choice(photos, monkeypatch, capsys, out, images):
    decision = selection.Decision(features_of_images(images), "as found")
    train = Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr(selection, "choose", lambda *_: decision)
    monkeypatch.setattr("pml_ext_fit.workflows.train", train)
    with pytest.raises(KeyboardInterrupt):
        fit(photos, out=out)
    monkeypatch.setattr(selection, "choose", None)
    with pytest.raises(KeyboardInterrupt):
        fit(photos, out=out, resume=True)
    first, second = (call.kwargs for call in train.call_args_list)
    assert first == {**second, "listener": first["listener"]}
    assert first["resume"]
    assert "goes on with what was chosen before: frozen features" in capsys.readouterr().err
    (plan,) = launch.plan(decision.choice().recipe, out, overrides=second["overrides"], resume=True)
    assert plan.recipe.description == "as found"
    with pytest.raises(ConfigError, match=r"run exists; add --resume"):
        fit(photos, out=out)
    (out / "choice.json").write_text('{"data": ')
    with pytest.raises(DataError, match=r"choice.json: not what a command has chosen .* delete it, and --resume"):
        fit(photos, out=out, resume=True)


@pytest.mark.usefixtures("weights")
def test_trials_that_are_stopped_begin_again(photos, tmp_path, monkeypatch, out):
    monkeypatch.setattr(selection, "choose", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(
        StoppedError, match=r"stopped by SIGTERM in the trials.* with --out .*run --resume, which makes"
    ):
        fit(photos, out=out)
    tried = []

    def fails(*_):
        tried.append(out.is_dir())
        raise DataError("no images")

    monkeypatch.setattr(selection, "choose", fails)
    with pytest.raises(DataError):
        fit(photos, out=out, resume=True)
    assert out.is_dir()  # it was there before
    with pytest.raises(DataError):
        fit(photos, out=tmp_path / "other")
    assert tried == [True, True]
    assert not (tmp_path / "other").exists()
    (out / "letter.txt").write_text("of somebody")
    monkeypatch.setattr(selection, "choose", None)
    with pytest.raises(ConfigError, match=r"run has other files and no run \(no recipe.toml\); choose another --out"):
        fit(photos, out=out, resume=True)


@pytest.mark.usefixtures("weights")
def test_trials_leave_nothing_in_the_folder(photos, monkeypatch, out):
    (out / "trials" / "of a killed process").mkdir(parents=True)

    def choose(images, trunk, place, *_):
        assert (place.folder, [*place.folder.iterdir()]) == (out / "trials", [])
        raise DataError("no images")

    monkeypatch.setattr(selection, "choose", choose)
    with pytest.raises(DataError):
        fit(photos, out=out, resume=True)
    assert [path.name for path in out.iterdir()] == [".lock"]


@pytest.mark.usefixtures("weights")
def test_a_second_command_during_trials_is_refused(photos, monkeypatch, out):
    monkeypatch.setattr(selection, "choose", None)
    with locked_folder(out), pytest.raises(ConfigError, match="run is being written by another run; wait for it"):
        fit(photos, out=out, resume=True)
