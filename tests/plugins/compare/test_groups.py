"""Runs of equal settings are one group; names, values and settings of groups."""

import hashlib
import json
import shutil

import pytest

from pml_ext.errors import ConfigError, DataError
from pml_ext_compare.groups import Group, disambiguate_names, groups_below, settings_of

from .examples import finished_run


def test_runs_of_equal_settings_are_one_group(folder):
    twice = groups_below([folder / "runs/without", folder / "runs"])
    assert [len(each.runs) for each in twice] == [5, 5]
    one, other = groups_below([folder / "runs"])
    assert (one.name, other.name) == ("cbml/a loss.mvc_weight=1.0", "cbml/a loss.mvc_weight=0.0")
    assert one.recipe_name == "cbml/a"
    assert one.folders[2] == folder / "runs/2"


def test_the_fold_and_descriptions_are_no_settings():
    tables = {"description": "x", "paper": {"table": "y"}, "track": [], "loss": {"name": "z"}}
    assert settings_of(tables | {"evaluation": {"fold": 2, "select": "nmi"}}) == (
        2,
        {"loss.name": "z", "evaluation.select": "nmi"},
    )
    assert settings_of(tables) == (0, {"loss.name": "z"})


def test_a_setting_that_a_group_lacks_is_named(folder):
    finished_run(folder / "plain", "cbml/a", 0, 0.5)
    names = [group.name for group in groups_below([folder / "runs/0", folder / "plain"])]
    assert names == ["cbml/a loss.mvc_weight=1.0", "cbml/a loss.mvc_weight left out"]


def test_values_are_means_over_all_folds():
    runs = {0: {1: {"after": {"nmi": 0.2}}, 2: {"after": {"nmi": 0.4}}}, 1: {1: {"after": {"nmi": 0.9}}}}
    group = Group("a", {}, runs=runs)
    assert group.values("after", "nmi") == {0: pytest.approx(0.3)}  # seed 1 lacks a fold
    assert group.values("before", "nmi") == {}
    assert group.seconds() is None


VALIDATED = {"evaluation.validation": 0.2, "evaluation.select_on": "validation"}


@pytest.mark.parametrize(
    ("settings", "trials", "text"),
    [
        ({}, 0, "last epoch"),
        (VALIDATED, 0, "20 % of training classes"),
        (VALIDATED, 3, "trials: validation classes; 20 % of training classes"),
        (VALIDATED | {"evaluation.select_on": "test"}, 0, "test images"),
    ],
)
def test_selection_of_epochs_is_described(settings, trials, text):
    assert Group("a", settings, trials=trials).selection() == text


def test_the_order_of_metrics_makes_no_other_results(folder):
    finished_run(folder / "again/0", "cbml/a", 0, 0.1, mvc_weight=1.0)
    copy = folder / "copy/0"
    shutil.copytree(folder / "again/0", copy)
    metrics = json.loads((copy / "metrics.json").read_text())
    metrics["after"] = dict(reversed(metrics["after"].items()))
    (copy / "metrics.json").write_text(json.dumps(metrics))
    groups = groups_below([folder / "again", folder / "copy"])
    assert len(groups) == 1


def test_what_cannot_be_grouped_is_refused(folder):
    with pytest.raises(ConfigError, match=r"no finished run in it; type: pml-ext train"):
        groups_below([folder / "empty"])
    finished_run(folder / "again/0", "cbml/a", 0, 0.1, mvc_weight=1.0)
    with pytest.raises(ConfigError, match="another run has the same recipe, settings and seed, but different results"):
        groups_below([folder / "runs", folder / "again"])
    for text in ("[run", "[run]\nrecipe = 'cbml/a'\n"):
        (folder / "again/0/recipe.toml").write_text(text)
        with pytest.raises(DataError, match="not the recipe of a run"):
            groups_below([folder / "again"])


def test_metrics_of_another_run_are_refused(folder):
    run_0 = folder / "runs/0"
    run_1 = folder / "runs/1"
    digest = hashlib.sha256((run_1 / "metrics.json").read_bytes()).hexdigest()
    (run_1 / "metrics.json").write_bytes((run_0 / "metrics.json").read_bytes())
    assert groups_below([run_1])
    (run_1 / "SHA256SUMS").write_text(f"{digest}  metrics.json\n")
    with pytest.raises(DataError, match=r"1/metrics.json: not the file that the run wrote"):
        groups_below([folder / "runs"])


BASE = Group("base", {"loss.name": "cbml", "model.trunk.name": "convnet", "sampler.batch_size": 80})


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"model.trunk.name": "resnet"}, "trunk: resnet (convnet in base)"),
        ({"model.trunk.weights": "x"}, "weights: x (default in base)"),
        ({"model.embedding_size": 128}, "embedding size: 128 (default in base)"),
        ({"data.images.crop": 227}, "image size: 227 (default in base)"),
        ({"sampler.batch_size": 160}, "batch: 160 (80 in base)"),
        ({"schedule.epochs": 3}, "iterations: 3 (default in base)"),
        ({"data.augment.shift": 2}, "augmentation: 2 (default in base)"),
        ({"data.name": "other"}, "data: other (default in base)"),
        ({"data.official": "train"}, "data.official: train (default in base)"),
        ({"loss.name": "pddm"}, ""),
        ({"data.workers": 2, "data.cache": "memory"}, ""),
    ],
)
def test_unequal_settings_are_named_by_kind(change, text):
    assert Group("other", BASE.settings | change).unequal_settings(BASE) == [text] * bool(text)


def test_unequal_trials_and_failed_rows():
    assert Group("tuned", BASE.settings, trials=20).unequal_settings(BASE) == ["trials: 20 (0 in base)"]
    assert Group("failed", {}).unequal_settings(BASE) == []


def test_values_of_the_paper_are_quoted():
    paper = {"table": "cbml/7", "row": "CBML + MVC + Hard Mining"}
    values = Group("x", {"data.name": "omniglot-small"}, paper=paper).paper_values("after", "recall_at_1")
    assert values
    assert all(0.5 < each["value"] < 1 and not each["same_data"] for each in values)
    assert Group("x", {"data.name": "omniglot-small"}, paper={"table": "cbml/99"}).paper_values("after", "nmi") == []
    assert Group("x", {"data.name": "omniglot-small"}).paper_values("after", "nmi") == []


def test_metrics_that_are_not_finite_are_missing(tmp_path):
    finished_run(tmp_path / "0", "cbml/a", 0, 0.5)
    finished_run(tmp_path / "1", "cbml/a", 1, float("nan"))
    finished_run(tmp_path / "again/1", "cbml/a", 1, float("nan"))  # the same run: NaN differs from itself
    (group,) = groups_below([tmp_path])
    assert group.values("after", "recall_at_1") == {0: 0.5}
    assert group.values("after", "nmi") == {0: 0.5, 1: 0.5}


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        ([("a", {"x": 1}, 0), ("a", {"x": 1}, 20), ("b", {"x": 1}, 0)], ["a trials=0", "a trials=20", "b"]),
        (
            [("a", {"x": 1}, 0), ("a", {"x": 1}, 20), ("a", {"x": 2}, 0), ("a", {}, 0)],
            ["a x=1 trials=0", "a x=1 trials=20", "a x=2", "a"],
        ),
        ([("a", {"x": 1}, 0), ("a", {}, 20)], ["a trials=0", "a trials=20"]),  # the tuning of the second failed
    ],
)
def test_rows_with_unequal_trials_have_different_names(rows, names):
    groups = [Group(name, settings, trials=trials) for name, settings, trials in rows]
    disambiguate_names(groups)
    assert [group.name for group in groups] == names
