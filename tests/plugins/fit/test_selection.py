"""What is chosen, and what nothing is chosen for."""

import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext.errors import ConfigError, UnknownNameError
from pml_ext_fit import candidates, selection
from pml_ext_fit.candidates import features_of_images
from pml_ext_fit.closed_forms import AS_THEY_ARE, WITHIN_CLASSES
from pml_ext_fit.commands import fit
from pml_ext_fit.folds import folds_of
from pml_ext_fit.framing import DEFAULT
from pml_ext_fit.images import describe_images
from pml_ext_fit.scores import Scored, Scores
from pml_ext_fit.trunk import LITE0
from pml_ext_train.recipe import build_dataset, load_recipe

from ...overrides import typed
from ..train.training.made_up_photos import write_photos
from .helpers import recipe_of, scores, training_files, workplace


@pytest.mark.parametrize("text", ["several processes compare nothing", "from scratch; with ImageNet weights"])
def test_a_small_network_trains_without_trials(photos, tmp_path, monkeypatch, capsys, text):
    if text.startswith("several"):
        monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setitem(sys.modules, "timm", None)
    begun = []
    monkeypatch.setattr("pml_ext_fit.workflows.train", lambda recipe, **_: begun.append(recipe) or [])
    fit(photos, out=tmp_path / "run")
    assert begun == ["fit/photographs"]
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("setting", ["model.trunk.width=8", "loss.name=cbml", "loss = cbml", "sweep.loss.beta=[1]"])
def test_settings_of_training_name_the_other_command(photos, tmp_path, setting):
    with pytest.raises(ConfigError, match="fit chooses the model and the loss .*pml-ext train fit/photographs-pretra"):
        fit(photos, out=tmp_path / "run", overrides=typed([setting]))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"out": Path("there")}, "there exists; add --resume"),
        ({"out": Path("thre"), "resume": True}, "thre: there is no run to resume; correct --out"),
        ({"resume": True}, "--resume needs --out"),
        ({"out": Path("there/file/run")}, "run cannot be written"),
        ({"overrides": typed(["track=mlfow"])}, "no tracker 'mlfow'"),
        ({"overrides": typed(["evaluation.recall_at=[2]"])}, "recall_at includes 1"),
        ({"overrides": typed(["evaluation.evry=2"])}, "no key 'evry'"),
    ],
)
@pytest.mark.usefixtures("weights")
def test_what_is_refused_is_refused_before_the_trials(photos, tmp_path, monkeypatch, options, text):
    monkeypatch.setattr(selection, "choose", None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("a file")
    with pytest.raises((ConfigError, UnknownNameError), match=text):
        fit(photos, **options)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


@pytest.mark.usefixtures("weights")
def test_broken_classes_do_not_count_for_batches(tmp_path):
    place = tmp_path / "photos"
    write_photos(place, classes=26, each=6)
    found = describe_images(place)
    assert (found.training_classes, found.batch_of(13)) == (13, (13, 4))
    for file in training_files(place)[:6]:  # of one class
        file.write_bytes(b"broken")
    candidate = features_of_images(found)
    splits = build_dataset(recipe_of(candidate).data, None)
    training = selection.readable(candidate, splits, splits.train, workplace(tmp_path))
    assert len(training) == 72
    images = found.with_training_images(training)
    assert images.batches_of(images.training_classes) == {"sampler.m": 5, "sampler.batch_size": 60}


@pytest.mark.parametrize(("classes", "each"), [(2, 6), (24, 1)])
@pytest.mark.usefixtures("weights")
def test_too_little_to_compare_tries_nothing(tmp_path, classes, each):
    place = tmp_path / "photos"
    write_photos(place, classes=max(classes, 4), each=6)
    for number, file in enumerate(training_files(place)):
        if number % 6 >= each or number >= 6 * classes:
            file.unlink()
    lines = []
    chosen = selection.choose(describe_images(place), LITE0, workplace(tmp_path, say=lines.append))
    assert chosen.candidate.settings == features_of_images(describe_images(place)).settings
    assert chosen.description == ""
    assert "uses frozen features of efficientnet-lite0" in lines[-1]


class HeldOutByTitle:
    """Scores of candidates by the title of a closed form, and by fold of what is trained."""

    def __init__(self, free, trained=(), iterations=100):
        labels = [label for label in range(48) for _ in range(2)]
        self.folds = folds_of(labels, shared=False, seed=0)
        self._free = free
        self._trained = list(trained)
        self._each = iterations
        self.iterations = 0

    def scores_of_closed_form(self, form):
        mean = self._free[form.embedder]
        if mean is None:
            return None
        return [scores(mean, seed=number) for number in range(4)]

    def scores_of_trained(self, candidate, fold):
        self.iterations += self._each
        return self._trained.pop(0)


FREE = {"none": 0.3, "pca": 0.2, "within-class": 0.5}


def tried(images, folder, held_out):
    lines = []
    place = workplace(folder, say=lines.append)
    free = candidates.closed_forms(images, DEFAULT, LITE0)
    costly = [candidates.last_blocks(images)]
    best, scored = selection.try_all(free, costly, held_out, place)
    return best, scored, selection.described(best, scored, held_out.folds), lines


def test_a_significantly_better_training_is_taken(images, tmp_path):
    best, scored, text, lines = tried(images, tmp_path, HeldOutByTitle(FREE, [scores(0.6, seed=9)]))
    assert best.candidate.title == "last blocks"
    assert len(scored) == 4
    assert text.startswith("Last blocks, chosen by the mean of Recall@1 and MAP@R in %, each of 48 training classes")
    assert "in 1 of the folds; what is trained is taken where" in text
    assert lines[0].endswith("each of 48 training classes held out once, in 4 folds")


@pytest.mark.parametrize(("mean", "folds"), [(0.4, 1), (0.5003, 4)])
def test_folds_end_once_the_choice_is_decided(images, tmp_path, mean, folds):
    of_folds = [joined_with_noise(number) if folds > 1 else scores(mean, 0.1, seed=20 + number) for number in range(4)]
    best, scored, text, _ = tried(images, tmp_path, HeldOutByTitle(FREE, of_folds))
    assert best.candidate.form is WITHIN_CLASSES
    assert len(scored[-1].by_fold) == folds
    assert text.startswith("Frozen features, whitened within classes, chosen by")


def joined_with_noise(number):
    """Scores that are ahead of those of whitening in every fold by far less than they vary."""
    free = scores(0.5, seed=number)
    noise = torch.tensor([0.5, -0.5] * 6, dtype=torch.float64)
    return Scores(free.recall_at_1 + noise + 0.001, free.map_at_r + noise + 0.001)


def test_a_second_training_is_compared_in_equal_folds(tmp_path, images):
    first = Scored(candidates.last_blocks(images), [scores(0.5, seed=0)])
    held_out = HeldOutByTitle(FREE, [joined_with_noise(0), joined_with_noise(1)])
    place = workplace(tmp_path)
    small = selection.try_trained(candidates.small_network(images), first, held_out, place)
    assert len(small.by_fold) == 1


@pytest.mark.parametrize(
    ("lead", "few", "is_taken"), [(0.1, True, True), (0.001, True, True), (0.001, False, False), (-0.1, True, False)]
)
def test_held_out_classes_decide_for_more_blocks(tmp_path, lead, few, is_taken, images):
    first = scores(0.5, seed=0)
    noise = torch.tensor([0.05, -0.05] * 6, dtype=torch.float64)
    deeper = Scores(first.recall_at_1 + noise + lead, first.map_at_r + noise + lead)
    held_out = HeldOutByTitle(FREE, [deeper])
    known = Scored(candidates.last_blocks(images), [first, scores(0.9, seed=1)])
    scored = [known]
    lines = []
    candidate = candidates.last_blocks(images, first="blocks.3")
    best = selection.try_deeper(candidate, known, scored, held_out, workplace(tmp_path, say=lines.append), few)
    assert (best.candidate.title == "last blocks from blocks.3") == is_taken
    assert lines == [f"  last blocks from blocks.3, fold 1: {deeper}; last blocks: {first}"]
    assert selection.described(best, scored, held_out.folds).count("in 1 of the folds") == 1


def test_a_depth_without_trial_is_left_out(tmp_path, images):
    known = Scored(candidates.last_blocks(images), [scores(0.5)])
    held_out = HeldOutByTitle(FREE, [None])
    assert selection.try_deeper(known.candidate, known, [known], held_out, workplace(tmp_path), True) is known


@pytest.mark.parametrize(("iterations", "folds"), [(400, 4), (600, 3), (5000, 1)])
def test_folds_are_limited_by_iterations_not_time(images, tmp_path, monkeypatch, iterations, folds):
    clock = iter(range(0, 10**12, 10**6))  # of a machine that is very busy
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))
    held_out = HeldOutByTitle(FREE, [joined_with_noise(number) for number in range(4)], iterations)
    _, scored, _, _ = tried(images, tmp_path, held_out)
    assert len(scored[-1].by_fold) == folds


def test_candidates_that_fail_are_left_out(images, tmp_path):
    best, scored, text, _ = tried(images, tmp_path, HeldOutByTitle(FREE | {"within-class": None}, [None]))
    assert best.candidate.form is AS_THEY_ARE
    assert len(scored) == 2
    assert "what is trained" not in text


@pytest.mark.parametrize(("classes", "each", "found"), [(100, 20, 304), (4, 200, 300), (10, 5, 50)])
def test_the_sample_has_many_classes(classes, each, found):
    labels = np.repeat(np.arange(classes), each)
    rows = selection.sample_of(labels, 0)
    assert len(rows) == len(set(rows.tolist())) == found
    assert np.bincount(labels[rows]).max() == min(each, max(8, 300 // classes))


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
        (["data.image_size=64"], True),
        (["data.image_size=64", "data.images.squash=false"], False),
        (["data.images.crop=64", "data.images.resize=64"], False),
        (["data.images={squash=false, crop=64, resize=64}"], False),
    ],
)
@pytest.mark.usefixtures("weights")
def test_whole_images_are_preferred_where_they_tell_more(wide_photos, tmp_path, overrides, whole):
    lines = []
    place = workplace(tmp_path, typed(overrides), lines.append)
    found = describe_images(wide_photos, place.overrides)
    assert found.aspect == 2
    splits = build_dataset(recipe_of(features_of_images(found)).data, None)
    assert selection.choose_framing(found, LITE0, splits, place).squash == whole
    assert len([line for line in lines if " at 64 pixels: " in line]) == (2 if whole else 0)


@pytest.mark.usefixtures("weights")
def test_a_larger_size_wins_if_better(tmp_path, monkeypatch, images):
    splits = build_dataset(recipe_of(features_of_images(images)).data, None)

    def sides(small, large, count):
        by_side = {160: small, 224: large}
        monkeypatch.setattr(selection, "_scores_of_framing", lambda images, trunk, framing, *_: [by_side[framing.side]])
        described = replace(images, training_images=count)
        return selection.choose_framing(described, LITE0, splits, workplace(tmp_path)).side

    small = scores(0.5, 0.1, seed=1)
    ahead = Scores(small.recall_at_1 + 0.05, small.map_at_r + 0.05 + 0.01 * small.map_at_r)
    hardly = scores(0.5, 0.1, seed=2)
    more = small.both.mean() - hardly.both.mean() + 0.001
    hardly = Scores(hardly.recall_at_1 + more, hardly.map_at_r + more)
    many = 10**6
    assert sides(small, ahead, 72) == sides(small, ahead, many) == 224
    assert [sides(small, hardly, 72), sides(small, hardly, many)] == [224, 160]
    assert sides(ahead, small, 72) == 160


@pytest.mark.slow
@pytest.mark.usefixtures("weights")
def test_all_candidates_are_tried_on_held_out_classes(photos, tmp_path):
    lines = []
    overrides = typed(["schedule.epochs=1", "sampler.iterations=1", "data.image_size=32"])
    place = workplace(tmp_path, overrides, lines.append)
    found = selection.choose(describe_images(photos, overrides), LITE0, place).choice()
    text = "\n".join(lines)
    assert "each of 12 training classes held out once, in 4 folds" in text
    for title in ("frozen features", "frozen features, whitened", "last blocks, fold 1", "small network from scratch"):
        assert f"  {title}" in text
    assert lines[-1].startswith("chooses last blocks, the middle of images at 32 pixels: that took ")
    load_recipe(found.recipe, found.settings)


@pytest.mark.slow
@pytest.mark.usefixtures("weights")
def test_few_classes_are_compared_by_image(photos, tmp_path):
    place = tmp_path / "few"
    write_photos(place, classes=3, each=12)
    lines = []
    overrides = typed(["data.image_size=32"])
    images = describe_images(place, overrides)
    place = workplace(tmp_path, overrides, lines.append)
    found = selection.choose(images, LITE0, place, closed_form=True).choice()
    assert any("the items of 3 training classes held out once, in 3 folds" in line for line in lines)
    assert load_recipe(found.recipe, found.settings).model.freeze == "trunk"
