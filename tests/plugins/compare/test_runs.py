"""Runs that a comparison does itself: each once, resumed where it stopped, and rows of what failed."""

import threading

import pytest
import tomli_w

from pml_ext.errors import ConfigError
from pml_ext_compare import runs
from pml_ext_compare.job_queue import do
from pml_ext_compare.jobs import Executor
from pml_ext_compare.runs import RunJob, plans_of, recipes_of_table, reported_of, rows_of, run_lock, with_settings
from pml_ext_train.launch.launch import execute
from pml_ext_train.recipe import load_recipe, load_recipes, reported_phases

from .examples import SMALL, compare, finished_run, silent

UNSEEN = SMALL.replace("batch_size = 20", "batch_size = 4") + "data = { name = 'digits-unseen' }\n"


@pytest.mark.usefixtures("without_report")
def test_two_comparisons_do_a_run_only_once(recipe, tmp_path, begun):
    (plan,) = plans_of(load_recipes(recipe), tmp_path / "out")
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
def test_folds_have_disjoint_classes_and_one_mean(tmp_path):
    file = tmp_path / "one.toml"
    file.write_text(UNSEEN)
    plans = plans_of(load_recipes(str(file)), tmp_path / "out", seeds=2, folds=2)
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


def test_recipes_that_quote_a_papers_table():
    assert "cbml/omniglot-small" in recipes_of_table("cbml/7", full=False)
    assert recipes_of_table("cbml/7", full=True) == ["cbml/7"]
    with pytest.raises(ConfigError, match="--table cbml/99: wanted one of"):
        recipes_of_table("cbml/99", full=False)


FEW = ["--set", "evaluation.recall_at=[1, 3]", "--set", "evaluation.training_images=10"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--metric", "nosuch"], "--metric nosuch: the recipes' runs have recall_at_1, recall_at_3, "),
        (["--phase", "nosuch"], "--phase nosuch: the recipes' runs have after, training"),
        (["--phase", "learned_metric"], "--phase learned_metric: the recipes' runs have after, training"),
        (
            ["--phase", "frozen", "--set", "evaluation.baselines=true"],
            "frozen: the recipes' runs have after, training, raw",
        ),
        (["--baseline", "other"], "--baseline other: no row has the name 'other'; rows: "),
        (["--phase", "training", "--metric", "nmi"], "--metric nmi: the recipes' runs have recall_at_1, "),
        (
            ["pddm/digits", "--phase", "learned_metric"],
            "one.toml, has after, training; name another one by --baseline",
        ),
    ],
)
def test_unknown_metrics_and_phases_end_before_training(recipe, tmp_path, begun, words, text):
    assert text in str(compare(recipe, "--out", tmp_path / "out", *FEW, *words).exception)
    assert begun == []


@pytest.mark.parametrize(
    ("phase", "metrics"),
    [("training", ["recall_at_1"]), ("raw", ["recall_at_1", "nmi"]), ("after", ["recall_at_1", "nmi", "ncm_top_1"])],
)
def test_phases_report_metrics_of_their_own(phase, metrics):
    assert reported_of(phase, ["recall_at_1", "nmi", "ncm_top_1"]) == metrics


def test_a_learned_metric_is_a_phase():
    (learned,) = load_recipes("pddm/digits").values()
    assert reported_phases(learned) == ["after", "training", "raw", "before", "learned_metric", "shortlist"]


@pytest.mark.parametrize(
    "settings", [{"model.embedder": "linear"}, {"model.embedder": "none", "model.embedding_size": 64}]
)
def test_a_tuned_recipe_is_validated_again(settings):
    recipe = load_recipe("cbml/digits", {"model.embedder": "mlp"})
    tuned = with_settings(recipe, settings, "one")
    assert tuned.as_dict() == load_recipe("cbml/digits", settings).as_dict()


def test_folds_leave_each_variant_its_own_evaluation(tmp_path):
    file = tmp_path / "swept.toml"
    sweep = """[sweep]
"evaluation.recall_at" = [[1], [1, 2]]
[sweep.rows.by-nmi]
evaluation = { validation = 0.5, select = "nmi" }
[sweep.rows.last]
"""
    file.write_text(UNSEEN + sweep)
    plans = plans_of(load_recipes(str(file)), tmp_path / "out", folds=2)
    found = {(plan.name.partition("@")[2], plan.recipe.evaluation.fold): plan.recipe.evaluation for plan in plans}
    assert len(found) == 8
    for (variant, _), evaluation in found.items():
        assert evaluation.select == ("nmi" if variant.endswith("by-nmi") else "map_at_r")
        assert evaluation.recall_at == ([1, 2] if variant.startswith("[1, 2]") else [1])
        assert evaluation.validation == 0.5
    assert RunJob(plans[0], "cpu", None).name.endswith(", seed 0, fold 1")


def test_a_fold_that_always_fails_leaves_nothing(tmp_path, monkeypatch):
    file = tmp_path / "one.toml"
    file.write_text(UNSEEN)

    def execute_first_fold(plan, *_, **__):
        if plan.recipe.evaluation.fold == 2:
            raise OSError("no memory")
        finished_run(plan.folder, plan.name, plan.seed, 0.5)
        text = tomli_w.dumps(plan.recipe.as_dict() | {"run": {"recipe": plan.name, "seed": plan.seed}})
        (plan.folder / "recipe.toml").write_text(text)

    monkeypatch.setattr(runs, "execute", execute_first_fold)
    plans = plans_of(load_recipes(str(file)), tmp_path / "out", seeds=2, folds=2)
    (group,) = rows_of(plans, [], Executor(), silent, "cpu")
    assert group.values("after", "recall_at_1") == {}
    assert [*group.errors] == [f"{file}, seed 0, fold 2", f"{file}, seed 1, fold 2"]
