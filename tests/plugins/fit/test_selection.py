"""What is chosen, and what nothing is chosen for."""

import sys
from pathlib import Path
from typing import ClassVar

import pytest

from pml_ext.errors import ConfigError, UnknownNameError
from pml_ext.recipe import load_recipe
from pml_ext.training.listener import Silence
from pml_ext_fit import decision, selection
from pml_ext_fit.candidates import FrozenFeatures
from pml_ext_fit.commands import fit
from pml_ext_fit.images import describe_images

from ...overrides import typed
from ...training.made_up_photos import write_photos
from .helpers import by_class, needs_weights, training_files


def test_without_the_extra_a_small_network_is_trained(photos, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "timm", None)
    begun = []
    monkeypatch.setattr("pml_ext.tool.train", lambda recipe, **_: begun.append(recipe) or [])
    fit(photos, out=tmp_path / "run")
    assert begun == ["fit/photographs"]
    assert "trains a small network from scratch; with ImageNet weights" in capsys.readouterr().err


def test_several_processes_try_nothing(photos, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    begun = []
    monkeypatch.setattr("pml_ext.tool.train", lambda recipe, **_: begun.append(recipe) or [])
    fit(photos, out=tmp_path / "run")
    assert begun == ["fit/photographs"]
    assert "several processes try nothing" in capsys.readouterr().err


@pytest.mark.parametrize("setting", ["model.trunk.width=8", "loss.name=cbml", "loss = cbml", "sweep.loss.beta=[1]"])
def test_settings_of_what_is_trained_name_the_other_command(photos, tmp_path, setting):
    with pytest.raises(ConfigError, match="fit chooses the model and the loss .*pml-ext train fit/photographs-pretra"):
        fit(photos, out=tmp_path / "run", overrides=typed([setting]))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"out": "there"}, "there exists; add --resume"),
        ({"out": "thre", "resume": True}, "thre: there is no run to resume; correct --out"),
        ({"resume": True}, "need --out"),
        ({"out": "there/file/run"}, "run cannot be written"),
        ({"out": "run", "overrides": ["track=mlfow"]}, "no tracker 'mlfow'"),
        ({"out": "run", "overrides": ["evaluation.recall_at=[2]"]}, "recall_at includes 1"),
        ({"out": "run", "overrides": ["evaluation.evry=2"]}, "no key 'evry'"),
    ],
)
def test_what_is_refused_is_refused_before_the_trials(photos, tmp_path, monkeypatch, options, text):
    needs_weights()
    monkeypatch.setattr(selection, "choose", None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("a file")
    if "out" in options:
        options = {**options, "out": Path(options["out"])}
    options = {**options, "overrides": typed(options.get("overrides", []))}
    with pytest.raises((ConfigError, UnknownNameError), match=text):
        fit(photos, **options)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


class TrialsOfNothing:
    """Trials whose first candidate is by far the best; keeps the images."""

    given: ClassVar = []

    def __init__(self, images, *_):
        self.given.append(images)
        self.scored = []

    def prefer_whole_images(self):
        return False

    def try_all(self, known):
        for number, candidate in enumerate(known):
            self.scored.append(decision.Scored(candidate, by_class(0.9 - 0.1 * number, seed=number)))


@pytest.fixture
def without_trials(monkeypatch):
    needs_weights()
    monkeypatch.setattr(selection, "Trials", TrialsOfNothing)
    monkeypatch.setattr(selection, "seconds_per_image", lambda *_: 0.5)
    monkeypatch.setattr(TrialsOfNothing, "given", [])
    return TrialsOfNothing.given


def test_broken_classes_do_not_count_for_batches(tmp_path, without_trials):
    place = tmp_path / "photos"
    write_photos(place, classes=26, each=6)
    found = describe_images(place)
    assert (found.training_classes, found.batch_of(13)) == (13, (13, 4))
    for file in training_files(place)[:6]:  # of one class
        file.write_bytes(b"broken")
    settings = selection.choose(found, [], tmp_path, 0, "cpu", None, Silence(), print).choice().settings
    (images,) = without_trials
    assert (images.training_classes, images.training_images) == (12, 72)
    assert (settings["sampler.m"], settings["sampler.batch_size"]) == (5, 60)


@pytest.mark.parametrize(
    ("first_class", "others", "wanted"),
    [(0, 6, "of 12 training classes with images that can be read"), (1, 1, "of which 3 have two images")],
)
def test_too_little_to_compare_tries_nothing(tmp_path, without_trials, first_class, others, wanted):
    place = tmp_path / "photos"
    write_photos(place, classes=24, each=6)
    found = describe_images(place)
    for number, file in enumerate(training_files(place)):
        readable = first_class if number < 6 else others
        if number % 6 >= readable:
            file.write_bytes(b"broken")
    lines = []
    chosen = selection.choose(found, [], tmp_path, 0, "cpu", None, Silence(), lines.append)
    assert type(chosen.candidate) is FrozenFeatures
    assert chosen.description == ""
    assert without_trials == []
    assert wanted in lines[-1]


def chosen(photos, folder, *overrides):
    needs_weights()
    lines = []
    found = selection.choose(describe_images(photos), typed(overrides), folder, 0, "cpu", None, Silence(), lines.append)
    return found.choice(), lines


@pytest.mark.slow
def test_all_candidates_are_tried_on_held_out_classes(photos, tmp_path):
    found, lines = chosen(photos, tmp_path, "schedule.epochs=1", "sampler.iterations=1")
    text = "\n".join(lines)
    assert "on 3 of the training classes, held out for that" in lines[1]
    for title in ("frozen features", "frozen features, whitened", "head on frozen features", "last blocks", "small"):
        assert f"  {title}" in text
    assert found.settings["description"] in lines[-1]
    load_recipe(found.recipe, found.settings)


@pytest.mark.slow
def test_few_classes_get_frozen_features(photos, tmp_path):
    place = tmp_path / "few"
    for label in range(3):
        (place / str(label)).mkdir(parents=True)
        for number in range(6):
            source = photos / f"class-{label:02d}" / f"{number}.png"
            (place / str(label) / source.name).write_bytes(source.read_bytes())
    found, lines = chosen(place, tmp_path)
    assert "takes frozen features of efficientnet-lite0" in lines[0]
    assert load_recipe(found.recipe, found.settings).model.embedder == "none"
