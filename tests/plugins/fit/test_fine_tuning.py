"""The stage of the whole network after what was chosen for somebody's images."""

import json
import sys

import pytest
import tomli_w

from pml_ext.errors import ConfigError, MissingExtraError
from pml_ext_fit import candidates, fine_tuning, selection
from pml_ext_fit.commands import fit
from pml_ext_fit.framing import Framing
from pml_ext_fit.timing import PerImage
from pml_ext_fit.trunk import BLOCKS_FIRST, LITE0, PRETRAINED
from pml_ext_train.recipe import load_recipe, reported_phases

from ...overrides import typed
from .helpers import workplace


@pytest.fixture
def quick_clock(monkeypatch):
    """Embedding an image takes half a second."""
    monkeypatch.setattr(fine_tuning, "seconds_per_image", lambda *_: PerImage(0.1, 0.5))


def chosen(kind, images):
    candidate = kind(images)
    return selection.Decision(candidate, f"The {candidate.title}, chosen")


@pytest.mark.usefixtures("weights")
@pytest.mark.parametrize(("kind", "epochs"), [(candidates.features_of_images, 13), (candidates.last_blocks, 12)])
def test_fine_tuning_follows_features_and_last_blocks(images, photos, quick_clock, kind, epochs):
    lines = []
    place = workplace(None, typed([f"schedule.epochs={epochs}"]), lines.append)
    found = fine_tuning.continued(chosen(kind, images), images, LITE0, place)
    recipe = load_recipe(found.recipe, found.settings | {"schedule.epochs": epochs})
    assert [stage.epochs for stage in recipe.all_stages()] == [8, epochs - 8]
    assert recipe.all_stages()[0].freeze.until == "blocks.5"
    assert recipe.data.name == f"folder:{photos}"
    model = recipe.model
    assert (model.freeze, model.freeze_batch_norm) == ("none", True)
    assert (model.start, model.refit) == ("within-class", "within-class")
    assert {"frozen", "blocks", "after", "features"} <= set(reported_phases(recipe))
    seconds = 3 * (epochs - 8) * 20 * recipe.sampler.batch_size * 0.5
    then = f"first the last blocks for 8 epochs, then the whole network for {epochs - 8}"
    assert lines == [f"fine-tunes: {then}; about {round(seconds / 60)} more minutes"]
    assert recipe.description == f"The {found.title}, chosen. Fine-tuned: {then}"


def test_a_small_network_is_whole_already(images):
    small = chosen(candidates.small_network, images)
    lines = []
    found = fine_tuning.continued(small, images, LITE0, workplace(None, say=lines.append))
    assert found == small.choice()
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
def test_too_few_epochs_are_refused_before_the_trials(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(selection, "choose", None)
    with pytest.raises(ConfigError, match=r"--set schedule.epochs=8: .*found 8, but the stages alone have 8 epochs"):
        fit(photos, out=tmp_path / "run", fine_tune=True, overrides=typed(["schedule.epochs=8"]))
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("weights")
def test_both_stages_keep_their_own_epochs(photos, quick_clock, tmp_path, monkeypatch, images):
    tried = []

    def choose(images, trunk, place, fine_tune):
        assert fine_tune
        tried.append(place.overrides)
        return selection.Decision(candidates.features_of_images(images, Framing(squash=True)))

    begun = []
    monkeypatch.setattr(selection, "choose", choose)
    monkeypatch.setattr("pml_ext_fit.workflows.train", lambda *_, **given: begun.append(given["overrides"]) or [])
    overrides = typed(["schedule.epochs=30", "sampler.iterations=7"])
    fit(photos, out=tmp_path / "run", fine_tune=True, overrides=overrides)
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
    small = begun_run(tmp_path / "small", candidates.SMALL, settings[:1])  # which had won, and is trained whole
    fit(photos, out=small, resume=True, fine_tune=True)
    assert begun[1] == str(small / "recipe.toml")


def begun_run(folder, name, settings):
    folder.mkdir()
    tables = load_recipe(name, typed(settings)).as_dict()
    (folder / "recipe.toml").write_text(tomli_w.dumps({**tables, "run": {"recipe": name, "seed": 0, "plugins": {}}}))
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("weights")
def test_a_fine_tuned_run_reports_its_stages(photos, images, quick_clock, monkeypatch, pml_ext_command, out):
    monkeypatch.setattr(selection, "choose", lambda *_, **__: chosen(candidates.features_of_images, images))
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
    for text in ("last blocks", "fine-tuned network", "Fine-tuned: first the last blocks for 8 epochs"):
        assert text in report
    assert "Training the whole network has" in done.stdout or "The trained network is behind the" in done.stdout
    assert "verdict" not in metrics
