"""The choice of what to train on somebody's images: the simplest of what is best on held-out classes."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import tomli_w
import torch
from PIL import Image

from pml_ext.cli.train import train
from pml_ext.errors import ConfigError, DataError, StoppedError, UnknownNameError
from pml_ext.files.checksums import replace_file
from pml_ext.recipe import build_dataset, load_recipe
from pml_ext.recipe.images import describe_images, settings_for_recipe
from pml_ext.training import choice, launch
from pml_ext.training.listener import Silence

from .made_up_photos import write_photos


def by_class(mean, spread=0.01, classes=12, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return mean + spread * torch.randn(classes, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(
    ("means", "spread", "wanted"),
    [
        ((0.3, 0.2, 0.25, 0.5), 0.01, "last blocks"),
        ((0.5, 0.2, 0.25, 0.3), 0.01, "frozen"),
        ((0.30, 0.301, 0.29, 0.302), 0.1, "frozen"),  # differences as large as chance gives
        ((0.3, 0.4, 0.35, 0.401), 0.02, "whitened"),
        ((0.3, 0.3, 0.5, 0.4), 0.01, "head"),
    ],
)
def test_the_simplest_of_the_best_is_taken(means, spread, wanted):
    titles = ("frozen", "whitened", "head", "last blocks")
    values = {}
    for number, (title, mean) in enumerate(zip(titles, means, strict=True)):
        values[title] = by_class(mean, spread, seed=number)
    assert choice.simplest_of_the_best(values) == wanted
    description = choice.description_of(wanted, values)
    assert description.startswith(f"The {wanted}, chosen by MAP@R in % on 12 held-out training classes: frozen ")


def test_equal_candidates_leave_the_simplest():
    same = by_class(0.5)
    assert choice.simplest_of_the_best({"frozen": same, "head": same.clone()}) == "frozen"


def test_many_images_get_fewer_views():
    assert [choice.views_of(count) for count in (10, 1_875, 4_052, 15_000, 10**6)] == [8, 8, 3, 1, 1]


# Folders


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder of 24 classes of six photographs, each of a color with noise."""
    place = tmp_path_factory.mktemp("photos")
    write_photos(place, classes=24, each=6)
    return place


def test_candidates_are_recipes_in_the_order_of_cost(photos):
    found = describe_images(photos)
    known = choice.candidates(found)
    assert [candidate.title for candidate in known] == [
        "frozen features", "frozen features, whitened", "head on frozen features", "last blocks",
        "small network from scratch",
    ]  # fmt: skip
    if choice.why_not():
        pytest.skip("the extra photos is not installed, whose trunk the recipes name")
    recipes = [load_recipe(candidate.recipe, candidate.settings) for candidate in known]
    assert [recipe.model.embedder for recipe in recipes] == ["none", "pca", "linear", "linear", "linear"]
    assert recipes[3].model.freeze.until == "blocks.5"
    assert {recipe.data.images.crop for recipe in recipes[:4]} == {160}
    assert recipes[3].sampler.iterations == 20


def test_candidates_may_see_whole_images(photos):
    found = describe_images(photos)
    assert found.aspect == 1
    known = choice.candidates(found, squash=True)
    assert known[0].title == "frozen features of whole images"
    for candidate in known[:4]:
        assert "data.images.squash=true" in candidate.settings
    assert "data.images.squash=true" not in known[4].settings


def test_without_the_extra_a_small_network_is_trained(photos, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "timm", None)
    begun = []
    monkeypatch.setattr("pml_ext.training.launch.train", lambda recipe, **_: begun.append(recipe) or [])
    train(images=photos, out=tmp_path / "run")
    assert begun == ["pml/photographs"]
    assert "trains a small network from scratch; with ImageNet weights" in capsys.readouterr().err


def test_several_processes_try_nothing(photos, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    begun = []
    monkeypatch.setattr("pml_ext.training.launch.train", lambda recipe, **_: begun.append(recipe) or [])
    train(images=photos, out=tmp_path / "run")
    assert begun == ["pml/photographs"]
    assert "several processes try nothing" in capsys.readouterr().err


def test_settings_of_the_model_are_not_chosen_again(photos, tmp_path, monkeypatch):
    begun = []
    monkeypatch.setattr("pml_ext.training.launch.train", lambda recipe, **_: begun.append(recipe) or [])
    monkeypatch.setattr(choice, "choose", None)
    train(images=photos, out=tmp_path / "run", overrides=["model.trunk.width=8"])
    assert begun == ["pml/photographs"]


def test_a_resumed_run_keeps_what_was_chosen(photos, tmp_path):
    found = describe_images(photos)
    lines = []
    assert choice.begun_run(tmp_path, found, lines.append) is None
    file = tmp_path / "seed-1" / "recipe.toml"
    file.parent.mkdir()
    file.write_text(f'[data]\nname = "folder:{photos}"\n[run]\nrecipe = "pml/photographs"\nseed = 1\n')
    begun = choice.begun_run(tmp_path, found, lines.append)
    assert Path(begun.file) == file
    assert begun.recipe == "pml/photographs"
    file.write_text('[data]\nname = "folder:others"\n[run]\nseed = 1\n')
    with pytest.raises(ConfigError, match="holds a run of folder:others, not of folder:"):
        choice.begun_run(tmp_path, found, lines.append)
    assert lines == []


@pytest.mark.parametrize("change", ["lr = 0.2", "lr = "])
def test_a_damaged_recipe_is_not_taken(photos, tmp_path, change):
    text = f'lr = 0.1\n[data]\nname = "folder:{photos}"\n[run]\nseed = 0\n'
    replace_file(tmp_path, "recipe.toml", lambda file: file.write_text(text))
    (tmp_path / "recipe.toml").write_text(text.replace("lr = 0.1", change))
    lines = []
    assert choice.begun_run(tmp_path, describe_images(photos), lines.append) is None
    assert lines == [f"{tmp_path / 'recipe.toml'} is damaged; it is written again"]


def test_a_resumed_recipe_keeps_the_settings_of_its_images(photos, tmp_path, monkeypatch):
    place = shutil.copytree(photos, tmp_path / "photos")
    begun = []
    monkeypatch.setattr("pml_ext.training.launch.train", lambda _, **given: begun.append(given["overrides"]) or [])
    train(choice.SMALL, images=place, out=tmp_path / "run")
    write_recipe(tmp_path / "run", choice.SMALL, begun[0])
    shutil.rmtree(place)
    write_photos(place, classes=6, each=12)
    train(choice.SMALL, images=place, out=tmp_path / "run", resume=True)
    first, second = [load_recipe(choice.SMALL, overrides) for overrides in begun]
    assert first == second


def write_recipe(folder, name, settings):
    folder.mkdir()
    tables = load_recipe(name, settings).as_dict()
    (folder / "recipe.toml").write_text(tomli_w.dumps({**tables, "run": {"recipe": name, "seed": 0}}))


# Before and after the trials


def needs_weights():
    if choice.why_not():
        pytest.skip("the extra photos is not installed, whose trunk the recipes name")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"out": "there"}, "there exists; add --resume"),
        ({"out": "thre", "resume": True}, "thre: there is no run to resume; correct --out"),
        ({"resume": True}, "need --out"),
        ({"out": "there/file/run"}, "run cannot be written"),
        ({"out": "run", "track": ["mlfow"]}, "no tracker 'mlfow'"),
        ({"out": "run", "overrides": ["evaluation.recall_at=[2]"]}, "recall_at includes 1"),
        ({"out": "run", "overrides": ["evaluation.evry=2"]}, "no key 'evry'"),
    ],
)
def test_what_is_refused_is_refused_before_the_trials(photos, tmp_path, monkeypatch, options, text):
    needs_weights()
    monkeypatch.setattr(choice, "choose", None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("a file")
    if "out" in options:
        options = {**options, "out": Path(options["out"])}
    with pytest.raises((ConfigError, UnknownNameError), match=text):
        train(images=photos, **options)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_a_killed_run_goes_on_with_what_was_chosen(photos, tmp_path, monkeypatch, capsys):
    needs_weights()
    out = tmp_path / "run"
    known = choice.candidates(describe_images(photos))[0]
    chosen = choice.Choice(known.recipe, [*known.settings, 'description="as found"'], known.title)
    begun = []

    def killed(*_, **given):
        begun.append(given)
        raise KeyboardInterrupt

    monkeypatch.setattr(choice, "choose", lambda *_: chosen)
    monkeypatch.setattr("pml_ext.training.launch.train", killed)
    with pytest.raises(KeyboardInterrupt):
        train(images=photos, out=out)
    monkeypatch.setattr(choice, "choose", None)
    with pytest.raises(KeyboardInterrupt):
        train(images=photos, out=out, resume=True)
    assert begun[0] == {**begun[1], "listener": begun[0]["listener"]}
    assert begun[0]["resume"]
    assert "goes on with what was chosen before: frozen features" in capsys.readouterr().err
    (plan,) = launch.plan(chosen.recipe, out, overrides=begun[1]["overrides"], resume=True)
    assert plan.recipe.description == "as found"
    with pytest.raises(ConfigError, match=r"run exists; add --resume"):
        train(images=photos, out=out)
    (out / "choice.json").write_text('{"data": ')
    with pytest.raises(DataError, match=r"choice.json: not what a command has chosen .* delete it, and --resume"):
        train(images=photos, out=out, resume=True)


def test_trials_that_are_stopped_begin_again(photos, tmp_path, monkeypatch):
    needs_weights()
    out = tmp_path / "run"
    monkeypatch.setattr(choice, "choose", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(
        StoppedError, match=r"stopped by SIGTERM in the trials.* with --out .*run --resume, which makes"
    ):
        train(images=photos, out=out)
    tried = []

    def fails(*_):
        tried.append(out.is_dir())
        raise DataError("no images")

    monkeypatch.setattr(choice, "choose", fails)
    with pytest.raises(DataError):
        train(images=photos, out=out, resume=True)
    assert tried == [True]
    assert out.is_dir()  # it was there before
    with pytest.raises(DataError):
        train(images=photos, out=tmp_path / "other")
    assert tried == [True, True]
    assert not (tmp_path / "other").exists()
    (out / "letter.txt").write_text("of somebody")
    with pytest.raises(ConfigError, match=r"run holds no run \(no recipe.toml in it\); choose another --out"):
        train(images=photos, out=out, resume=True)
    assert len(tried) == 2


# Parts of the trials


class TrialsOfNothing:
    """Trials whose first candidate is by far the best; keeps the images."""

    given: ClassVar = []

    def __init__(self, images, *_):
        self.given.append(images)
        self.values = {}

    def prefer_whole_images(self):
        return False

    def try_all(self, known):
        for number, candidate in enumerate(known):
            self.values[candidate.title] = by_class(0.9 - 0.1 * number, seed=number)


@pytest.fixture
def without_trials(monkeypatch):
    needs_weights()
    monkeypatch.setattr(choice, "_Trials", TrialsOfNothing)
    monkeypatch.setattr(choice, "seconds_per_image", lambda *_: 0.5)
    monkeypatch.setattr(TrialsOfNothing, "given", [])
    return TrialsOfNothing.given


def test_broken_classes_do_not_count_for_batches(tmp_path, without_trials):
    place = tmp_path / "photos"
    write_photos(place, classes=26, each=6)
    found = describe_images(place)
    assert (found.training_classes, found.batch_of(13)) == (13, (13, 4))
    for file in training_files(place)[:6]:  # of one class
        file.write_bytes(b"broken")
    settings = choice.choose(found, [], 0, "cpu", None, None, print).settings
    (images,) = without_trials
    assert (images.training_classes, images.training_images) == (12, 72)
    assert {"sampler.m=5", "sampler.batch_size=60"} <= {*settings}


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
    assert choice.choose(found, [], 0, "cpu", None, None, lines.append).title == "frozen features"
    assert without_trials == []
    assert wanted in lines[-1]


@pytest.mark.parametrize(
    ("overrides", "m", "batch_size"),
    [
        ([], 6, 54),  # 9 of 12 classes
        (["sampler.iterations=3"], 6, 54),
        (["sampler.batch_size=30"], 5, 30),
        (["sampler.batch_size=60"], 5, 45),  # the final run has the classes for it
        (["sampler.m=4", "sampler.batch_size=48"], 4, 36),
    ],
)
def test_trials_have_the_batches_of_the_options(photos, tmp_path, overrides, m, batch_size):
    needs_weights()
    found = describe_images(photos)
    trials = choice._Trials(found, overrides, tmp_path, 0, "cpu", None, Silence(), print)
    sampler = trials._recipe_of(choice.candidates(found)[2]).sampler
    assert (sampler.settings["m"], sampler.batch_size) == (m, batch_size)


@pytest.mark.parametrize("override", ["evaluation.select_on=split", "evaluation.held_out=last"])
def test_trials_validate_in_their_own_way(photos, tmp_path, override):
    needs_weights()
    found = describe_images(photos)
    overrides = [override, "evaluation.select=nmi"]
    trials = choice._Trials(found, overrides, tmp_path, 0, "cpu", None, Silence(), print)
    table = trials._recipe_of(choice.candidates(found)[2]).evaluation
    assert (table.validation, table.select, table.select_on, table.held_out) == (
        0.25,
        "map_at_r",
        "validation",
        "drawn",
    )


@pytest.mark.parametrize(("size", "left_out"), [(10**6, False), (10**8, True)])
def test_activations_that_take_too_much_are_left_out(photos, tmp_path, size, left_out):
    lines = []
    trials = choice._Trials(describe_images(photos), [], tmp_path, 0, "cpu", None, Silence(), lines.append)
    cut = SimpleNamespace(table=SimpleNamespace(gigabytes=8.0), bytes_per_image=size)
    recipe = SimpleNamespace(model=SimpleNamespace(views=8))
    run = SimpleNamespace(trunk_cut=lambda stage: cut, stages=[None], recipe=recipe)
    candidate = choice.Candidate("last blocks", choice.PRETRAINED, ())
    assert trials._takes_too_much(candidate, run) == left_out
    text = "  last blocks: left out, since their activations would take 57.6 GB, and 8 GB is the most; "
    assert [line.startswith(text) for line in lines] == [True] * left_out


def small(place, *overrides):
    """Return the small network as a candidate, which needs no weights."""
    return choice.Candidate("small", choice.SMALL, settings_for_recipe(choice.SMALL, describe_images(place, overrides)))


def training_files(place):
    splits = build_dataset(load_recipe(choice.SMALL, small(place).settings).data, None)
    return splits.train.paths


def test_images_are_timed_as_the_options_say(tmp_path):
    write_photos(tmp_path / "photos" / "ALL", classes=4, each=6)
    overrides = ["data.classes=leaf"]
    assert choice.seconds_per_image(small(tmp_path / "photos", *overrides), overrides, "cpu", None) > 0


def test_broken_files_do_not_end_the_estimate(photos, tmp_path):
    place = shutil.copytree(photos, tmp_path / "photos")
    candidate = small(place)
    files = training_files(place)
    for file in files[: choice.TIMED_IMAGES]:
        file.write_bytes(b"broken")
    assert choice.seconds_per_image(candidate, [], "cpu", None) > 0
    for file in files:
        file.write_bytes(b"broken")
    assert choice.seconds_per_image(candidate, [], "cpu", None) is None


def test_values_by_class_are_those_of_classes_with_two_images():
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(60, 4, generator=generator)
    labels = torch.cat([torch.arange(9).repeat(6), torch.tensor([3, 3, 7, 7, 7, 9])])  # one image of the last
    run = SimpleNamespace(device=torch.device("cpu"), true_labels=lambda split: labels)
    similarities = torch.nn.functional.normalize(points) @ torch.nn.functional.normalize(points).T
    wanted = []
    for label in range(9):
        values = []
        for query in (labels == label).nonzero().flatten().tolist():
            order = similarities[query].argsort(descending=True)
            right = labels[order[order != query]] == label
            relevant = int(right.sum())
            precision = right.double().cumsum(0) / torch.arange(1, len(right) + 1)
            values.append(float((precision * right)[:relevant].sum()) / relevant)
        wanted.append(sum(values) / len(values))
    found = choice._map_at_r_by_class(run, points)
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), atol=1e-6, rtol=0)


def test_large_classes_are_searched_without_keeping_neighbors(monkeypatch):
    kept = []
    evaluate = choice.RetrievalAccuracyCalculator.evaluate
    monkeypatch.setattr(
        choice.RetrievalAccuracyCalculator,
        "evaluate",
        lambda self, *given, keep=0: kept.append(keep) or evaluate(self, *given, keep=keep),
    )
    run = SimpleNamespace(device=torch.device("cpu"), true_labels=lambda split: torch.arange(2).repeat(20))
    choice._map_at_r_by_class(run, torch.randn(40, 3))
    assert kept == [0]


# Whole choices, with ImageNet weights


def chosen(photos, *overrides):
    needs_weights()
    lines = []
    found = choice.choose(describe_images(photos), overrides, 0, "cpu", None, None, lines.append)
    return found, lines


@pytest.mark.slow
def test_all_candidates_are_tried_on_held_out_classes(photos):
    found, lines = chosen(photos, "schedule.epochs=1", "sampler.iterations=1")
    text = "\n".join(lines)
    assert "on 3 of the training classes, held out for that" in lines[1]
    for title in ("frozen features", "frozen features, whitened", "head on frozen features", "last blocks", "small"):
        assert f"  {title}" in text
    settings = dict(setting.split("=", 1) for setting in found.settings)
    assert json.loads(settings["description"]) in lines[-1]
    load_recipe(found.recipe, found.settings)


@pytest.fixture
def wide_photos(tmp_path):
    """48 classes of four photographs, whose left and right quarters have the color of the class, with noise."""
    generator = np.random.default_rng(0)
    for label in range(48):
        folder = tmp_path / "wide" / f"{label:02d}"
        folder.mkdir(parents=True)
        colors = generator.integers(0, 256, size=(2, 3))
        for number in range(4):
            pixels = generator.normal(128, 30, size=(48, 96, 3))
            pixels[:, :24] += colors[0] - 128
            pixels[:, 72:] += colors[1] - 128
            Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(folder / f"{number}.png")
    return tmp_path / "wide"


@pytest.mark.parametrize(
    ("overrides", "whole"),
    [
        ([], True),
        (["data.images.flip=false"], True),
        (["data.images.crop=96"], False),
        (["data.images.squash=false"], False),
        (["data.images={squash=false}"], False),
    ],
)
def test_whole_images_are_preferred_where_they_tell_more(wide_photos, tmp_path, overrides, whole):
    if choice.why_not():
        pytest.skip("the extra photos is not installed")
    found = describe_images(wide_photos)
    assert found.aspect == 2
    lines = []
    trials = choice._Trials(found, overrides, tmp_path, 0, "cpu", None, Silence(), lines.append)
    assert trials.prefer_whole_images() == whole
    assert len(lines) == len(trials.values) == (2 if whole else 0)


@pytest.mark.slow
def test_few_classes_get_frozen_features(photos, tmp_path):
    place = tmp_path / "few"
    for label in range(3):
        (place / str(label)).mkdir(parents=True)
        for number in range(6):
            source = photos / f"class-{label:02d}" / f"{number}.png"
            (place / str(label) / source.name).write_bytes(source.read_bytes())
    found, lines = chosen(place)
    assert "takes frozen features of efficientnet-lite0" in lines[0]
    assert load_recipe(found.recipe, found.settings).model.embedder == "none"


def test_a_recipe_of_ones_own_is_not_chosen(photos, monkeypatch):
    monkeypatch.setattr(choice, "choose", None)
    with pytest.raises(UnknownNameError, match="no recipe 'pml/photograph'"):
        train("pml/photograph", images=photos)
