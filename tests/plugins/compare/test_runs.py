"""Runs that a comparison does itself: each once, resumed where it stopped, and rows of what failed."""

import threading

import pytest

from pml_ext.errors import ConfigError
from pml_ext.recipe import load_recipes, reported_phases
from pml_ext.training.launch import execute
from pml_ext_compare.executors import Executor, do
from pml_ext_compare.runs import RunJob, plans_of, recipes_of_table, rows_of, run_lock

from .examples import SMALL, compare, silent


@pytest.mark.usefixtures("without_report")
def test_two_comparisons_of_one_folder_do_a_run_once(recipe, tmp_path, begun):
    (plan,) = plans_of(recipe, tmp_path / "out")
    held = threading.Event()
    ended = threading.Event()

    def other():  # another comparison is at this run, and ends it
        with run_lock(plan.folder):
            held.set()
            execute(plan, "cpu", resume=True)
        ended.set()

    thread = threading.Thread(target=other)
    thread.start()
    held.wait()
    assert do([RunJob(plan, "cpu", None)], Executor(), silent) == {}
    thread.join()
    assert ended.is_set()
    assert begun == []


@pytest.mark.usefixtures("without_report")
def test_folds_are_disjoint_classes_and_one_value_per_seed(tmp_path):
    file = tmp_path / "one.toml"
    file.write_text(SMALL.replace("batch_size = 20", "batch_size = 4") + "data = { name = 'digits-unseen' }\n")
    plans = plans_of(str(file), tmp_path / "out", seeds=2, folds=2)
    assert [plan.folder.name for plan in plans] == ["seed-0-fold-1", "seed-1-fold-1", "seed-0-fold-2", "seed-1-fold-2"]
    (group,) = rows_of(plans, [], Executor(), silent, "cpu")
    assert group.errors == {}
    assert {seed: sorted(runs) for seed, runs in group.runs.items()} == {0: [1, 2], 1: [1, 2]}
    assert group.selection() == "50 % of training classes"
    images = [[run["images"] for run in runs.values()] for runs in group.runs.values()]
    for one, other in images:
        assert one["validation"]["classes"] + other["validation"]["classes"] == 5
        assert one["test"] == other["test"] == {"images": 896, "classes": 5}
    recalls = [run["after"]["recall_at_1"] for run in group.runs[0].values()]
    assert group.values("after", "recall_at_1")[0] == pytest.approx(sum(recalls) / 2)
    del group.runs[1][2]
    assert [*group.values("after", "recall_at_1")] == [0]  # a seed without one of its folds is none


def test_recipes_of_a_table():
    assert "cbml/omniglot-small" in recipes_of_table("cbml/7", full=False)
    assert recipes_of_table("cbml/7", full=True) == ["cbml/7"]
    with pytest.raises(ConfigError, match="--table cbml/99: wanted one of"):
        recipes_of_table("cbml/99", full=False)


def test_unknown_metrics_and_phases_end_before_training(recipe, tmp_path, begun):
    small = ["evaluation.recall_at=[1, 3]", "evaluation.baselines=true"]
    settings = [word for setting in small for word in ("--set", setting)]
    for words, text in (
        (["--metric", "nosuch"], "--metric nosuch: the recipes' runs have recall_at_1, recall_at_3, "),
        (["--phase", "nosuch"], "--phase nosuch: the recipes' runs have after, raw, before"),
        (["--phase", "learned_metric"], "--phase learned_metric: the recipes' runs have after, raw, before"),
        (["--phase", "frozen"], "--phase frozen: the recipes' runs have after, raw, before"),
        (["--baseline", "other"], "--baseline other: no row has the name 'other'; rows: "),
    ):
        assert text in str(compare(recipe, "--out", tmp_path / "out", *settings, *words).exception)
    assert begun == []
    (learned,) = load_recipes("pddm/digits").values()
    assert reported_phases(learned) == ["after", "training", "raw", "before", "learned_metric", "shortlist"]
