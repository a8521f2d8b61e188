"""What is chosen, by scores in folds, and what nothing is chosen for."""

import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext.errors import ConfigError, UnknownNameError
from pml_ext_fit import selection
from pml_ext_fit.candidates import closed_forms, features_of_images, last_blocks, small_network
from pml_ext_fit.closed_forms import AS_THEY_ARE, WITHIN_CLASSES
from pml_ext_fit.commands import fit
from pml_ext_fit.folds import folds_of
from pml_ext_fit.framing import DEFAULT
from pml_ext_fit.images import describe_images
from pml_ext_fit.scores import RetrievalAccuracyCalculator, Scored, Scores, best_of, scores_of
from pml_ext_fit.trunk import LITE0
from pml_ext_train.recipe import build_dataset, load_recipe

from ...overrides import typed
from ..train.training.made_up_photos import write_photos
from .helpers import recipe_of, scores, training_files, workplace


@pytest.mark.parametrize(
    ("processes", "text"), [("2", "several processes compare nothing"), ("1", "from scratch; with ImageNet weights")]
)
def test_a_small_network_trains_without_trials(photos, tmp_path, monkeypatch, capsys, processes, text):
    monkeypatch.setenv("WORLD_SIZE", processes)
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
    images = found.with_training_images(selection.readable(candidate, splits, splits.train, workplace(tmp_path)))
    assert images.training_images == 72
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
    images = describe_images(place)
    chosen = selection.choose(images, LITE0, workplace(tmp_path, say=lines.append))
    assert (chosen.candidate.settings, chosen.description) == (features_of_images(images).settings, "")
    assert "uses frozen features of efficientnet-lite0" in lines[-1]


class HeldOutByTitle:
    """Scores of candidates by the title of a closed form, and by fold of what is trained."""

    def __init__(self, free, trained=(), iterations=100):
        self.folds = folds_of(np.repeat(np.arange(48), 2), shared=False, seed=0)
        self._free = free
        self._trained = list(trained)
        self._each = iterations
        self.iterations = 0

    def scores_of_closed_form(self, form):
        mean = self._free[form.embedder]
        return None if mean is None else [scores(mean, seed=number) for number in range(4)]

    def scores_of_trained(self, candidate, fold):
        self.iterations += self._each
        return self._trained.pop(0)


FREE = {"none": 0.3, "pca": 0.2, "within-class": 0.5}


def tried(images, folder, held_out):
    lines = []
    free = closed_forms(images, DEFAULT, LITE0)
    best, scored = selection.try_all(free, [last_blocks(images)], held_out, workplace(folder, say=lines.append))
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
    """Scores ahead of whitening in every fold, by far less than they vary."""
    free = scores(0.5, seed=number)
    noise = torch.tensor([0.5, -0.5] * 6, dtype=torch.float64)
    return Scores(free.recall_at_1 + noise + 0.001, free.map_at_r + noise + 0.001)


def test_a_second_training_is_compared_in_equal_folds(tmp_path, images):
    first = Scored(last_blocks(images), [scores(0.5, seed=0)])
    held_out = HeldOutByTitle(FREE, [joined_with_noise(0), joined_with_noise(1)])
    assert len(selection.try_trained(small_network(images), first, held_out, workplace(tmp_path)).by_fold) == 1


@pytest.mark.parametrize(
    ("lead", "few", "is_taken"), [(0.1, True, True), (0.001, True, True), (0.001, False, False), (-0.1, True, False)]
)
def test_held_out_classes_decide_for_more_blocks(tmp_path, lead, few, is_taken, images):
    first = scores(0.5, seed=0)
    noise = torch.tensor([0.05, -0.05] * 6, dtype=torch.float64)
    deeper = Scores(first.recall_at_1 + noise + lead, first.map_at_r + noise + lead)
    held_out = HeldOutByTitle(FREE, [deeper])
    known = Scored(last_blocks(images), [first, scores(0.9, seed=1)])
    scored = [known]
    lines = []
    candidate = last_blocks(images, first="blocks.3")
    best = selection.try_deeper(candidate, known, scored, held_out, workplace(tmp_path, say=lines.append), few)
    assert (best.candidate.title == "last blocks from blocks.3") == is_taken
    assert lines == [f"  last blocks from blocks.3, fold 1: {deeper}; last blocks: {first}"]
    assert selection.described(best, scored, held_out.folds).count("in 1 of the folds") == 1


def test_a_depth_without_trial_is_left_out(tmp_path, images):
    known = Scored(last_blocks(images), [scores(0.5)])
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
        left, right = generator.integers(0, 256, size=(2, 3))
        for number in range(4):
            pixels = generator.normal(128, 30, size=(48, 96, 3))
            pixels[:, :24] += left - 128
            pixels[:, 72:] += right - 128
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
        return selection.choose_framing(replace(images, training_images=count), LITE0, splits, workplace(tmp_path)).side

    small = scores(0.5, 0.1, seed=1)
    ahead = Scores(small.recall_at_1 + 0.05, small.map_at_r + 0.05 + 0.01 * small.map_at_r)
    hardly = scores(0.5, 0.1, seed=2)
    more = small.both.mean() - hardly.both.mean() + 0.001
    hardly = Scores(hardly.recall_at_1 + more, hardly.map_at_r + more)
    many = 10**6
    assert sides(small, ahead, 72) == sides(small, ahead, many) == 224
    assert [sides(small, hardly, 72), sides(small, hardly, many)] == [224, 160]
    assert sides(ahead, small, 72) == 160


@pytest.mark.nightly
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


@pytest.mark.nightly
@pytest.mark.usefixtures("weights")
def test_few_classes_are_compared_by_image(photos, tmp_path):
    place = tmp_path / "few"
    write_photos(place, classes=3, each=12)
    lines = []
    overrides = typed(["data.image_size=32"])
    workshop = workplace(tmp_path, overrides, lines.append)
    found = selection.choose(describe_images(place, overrides), LITE0, workshop, closed_form=True).choice()
    assert any("the items of 3 training classes held out once, in 3 folds" in line for line in lines)
    assert load_recipe(found.recipe, found.settings).model.freeze == "trunk"


def held_out(folds):
    return np.sort(np.concatenate([fold.held_out for fold in folds.parts])).tolist()


@pytest.mark.parametrize(("classes", "parts"), [(4, 2), (5, 2), (6, 2), (9, 3), (12, 4), (98, 4)])
def test_every_class_is_held_out_once(classes, parts):
    labels = np.repeat(np.arange(classes), 3)
    folds = folds_of(labels, shared=False, seed=0)
    assert (folds.by, len(folds.parts), folds.classes) == ("class", parts, classes)
    assert held_out(folds) == list(range(3 * classes))
    for fold in folds.parts:
        assert set(labels[fold.held_out]).isdisjoint(labels[fold.fitted])
        assert len(fold.held_out) + len(fold.fitted) == len(labels)
        assert len(set(labels[fold.held_out])) >= (2 if classes < 6 else 3)


def test_a_lone_item_is_never_held_out():
    folds = folds_of(np.concatenate([np.repeat(np.arange(8), 4), [8, 9]]), shared=False, seed=0)
    assert held_out(folds) == list(range(32))
    assert all({32, 33} <= set(fold.fitted) for fold in folds.parts)


@pytest.mark.parametrize(("classes", "each", "parts"), [(5, 8, 4), (2, 4, 2), (30, 6, 3)])
def test_items_of_tested_classes_are_held_out(classes, each, parts):
    labels = np.repeat(np.arange(classes), each)
    folds = folds_of(labels, shared=True, seed=0)
    assert (folds.by, len(folds.parts)) == ("item", parts)
    assert held_out(folds) == list(range(len(labels)))
    for fold in folds.parts:
        assert set(labels[fold.fitted]) == set(range(classes))
        assert np.bincount(labels[fold.held_out]).min() >= 2


@pytest.mark.parametrize(
    ("labels", "shared"),
    [([0, 0, 1, 1], True), ([0] * 8, True), (list(range(9)), True), ([0, 1, 2] * 8, False), (list(range(9)), False)],
)
def test_too_few_items_have_no_folds(labels, shared):
    assert folds_of(labels, shared, seed=0) is None


def test_folds_are_drawn_by_the_seed():
    labels = np.repeat(np.arange(24), 2)
    first, same, other = (folds_of(labels, False, seed).parts[0].held_out.tolist() for seed in (0, 0, 1))
    assert first == same != other


def test_scores_are_means_over_each_class():
    points = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.cat([torch.arange(9).repeat(6), torch.tensor([3, 3, 7, 7, 7, 9])])  # one item of the last
    similarities = torch.nn.functional.normalize(points) @ torch.nn.functional.normalize(points).T
    of_queries = torch.zeros(60, 2, dtype=torch.float64)
    for query in range(60):
        order = similarities[query].argsort(descending=True)
        right = labels[order[order != query]] == labels[query]
        relevant = right.sum()
        precision = right.double().cumsum(0) / torch.arange(1, 60)
        of_queries[query, 0] = right[0]
        of_queries[query, 1] = (precision * right)[:relevant].sum() / relevant
    wanted = torch.stack([of_queries[labels == label].mean(0) for label in range(9)])
    found = scores_of(points, labels)
    torch.testing.assert_close(torch.stack([found.recall_at_1, found.map_at_r], 1), wanted, atol=1e-6, rtol=0)


def test_large_classes_are_searched_without_keeping_neighbors(monkeypatch):
    kept = []
    evaluate = RetrievalAccuracyCalculator.evaluate
    monkeypatch.setattr(
        RetrievalAccuracyCalculator,
        "evaluate",
        lambda self, *given, keep=0: kept.append(keep) or evaluate(self, *given, keep=keep),
    )
    scores_of(torch.randn(40, 3), torch.arange(2).repeat(20))
    assert kept == [0]


def test_both_scores_count_the_same():
    found = Scores(torch.tensor([0.5, 0.7]).double(), torch.tensor([0.1, 0.3]).double())
    torch.testing.assert_close(found.both, torch.tensor([0.3, 0.5]).double())
    assert str(found) == "60.0 / 20.0"


@pytest.mark.parametrize(("means", "wanted"), [((0.3, 0.2, 0.31), 2), ((0.5, 0.5, 0.4), 0), ((0.1, 0.4, 0.4), 1)])
def test_the_simplest_of_equal_closed_forms_wins(means, wanted):
    tried = [Scored(None, [scores(mean, spread=0)]) for mean in means]
    assert best_of(tried) is tried[wanted]
