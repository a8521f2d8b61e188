"""``pml-ext compare`` as it is typed: what it runs, prints and refuses."""

import json
import re
import threading
from unittest.mock import Mock

import pytest
import tomli_w
from scipy import stats

from pml_ext.errors import ConfigError
from pml_ext_compare import runs
from pml_ext_compare.job_queue import do
from pml_ext_compare.jobs import Executor
from pml_ext_compare.runs import RunJob, plans_of, recipes_of_table, reported_of, rows_of, run_lock, with_settings
from pml_ext_train.files.checksums import read_sums
from pml_ext_train.launch.launch import execute
from pml_ext_train.recipe import load_recipe, load_recipes, reported_phases

from .examples import ONE, OTHER, SMALL, compare, finished_run, silent


def test_the_command_prints_rows_and_differences(folder):
    shown = compare(folder / "runs").stdout
    assert "Recall@1" in shown
    assert "recall_at_1" not in shown
    lines = shown.splitlines()
    assert "cbml/a loss.mvc_weight=1.0 5 71.4 ± 2.3 35.7 ± 1.2 50.0 ± 0.0" in [" ".join(line.split()) for line in lines]
    p = stats.ttest_rel(OTHER, ONE).pvalue
    assert any("loss.mvc_weight=0.0" in line and "+2.2 ± 1.9" in line and f"{p:.3f}" in line for line in lines)
    baseline = ("--baseline", "cbml/a loss.mvc_weight=0.0")
    value = json.loads(compare(folder / "runs", "--json", "--metric", "nmi", *baseline).stdout)
    assert value["differences_from"] == baseline[1]
    assert value["recipes"][0]["nmi"]["values"] == [0.5] * 5
    assert value["differences"][0]["nmi"].items() >= {"mean": 0.0, "std": 0.0, "p": None, "pairs": 5}.items()


def test_one_run_has_no_spread(folder):
    line = next(line for line in compare(folder / "runs/0").stdout.splitlines() if line.startswith("cbml/a"))
    assert line.split() == ["cbml/a", "1", "70.0", "±", "-", "35.0", "±", "-", "50.0", "±", "-"]
    (value,) = json.loads(compare(folder / "runs/0", "--json").stdout)["recipes"]
    assert value["recall_at_1"] == {"mean": 0.7, "std": None, "low": None, "high": None, "values": [0.7], "paper": []}


def test_metrics_and_phases_that_runs_lack_are_refused(folder):
    text = "--metric k: cbml/a loss.mvc_weight=1.0 has recall_at_1"
    assert text in str(compare(folder / "runs", "--metric", "k").exception)
    assert "has after" in str(compare(folder / "runs", "--phase", "x").exception)


@pytest.mark.usefixtures("without_report")
def test_only_missing_runs_are_done_and_folders_count(recipe, tmp_path, begun):
    out = tmp_path / "out"
    compare(recipe, "--out", out, "--json", "--set", "sampler.iterations=1")
    assert begun == ["seed-0"]
    compare(recipe, "--out", out, "--seeds", 2, "--set", "sampler.iterations=1")
    assert begun == ["seed-0", "seed-1"]  # not seed 0 again
    other = tmp_path / "other"  # the folder's runs have the same recipe, settings and seed
    result = compare(recipe, out, "--out", other, "--seeds", 2, "--set", "sampler.iterations=1", "--json", "--latex")
    assert begun == ["seed-0", "seed-1"]
    value = json.loads(result.stdout)
    assert [row["seeds"] for row in value["recipes"]] == [[0, 1]]
    names = {path.name for path in other.iterdir()}
    assert names == {f"comparison.{end}" for end in ("json", "csv", "md", "html", "tex")}
    assert json.loads((other / "comparison.json").read_text()) == value
    compare(recipe, out, "--out", other, "--set", "sampler.iterations=2")
    assert begun == ["seed-0", "seed-1", "seed-0"]  # other settings are another run
    same = tmp_path / "same.toml"
    same.write_text('extends = "one.toml"\n')
    result = compare(recipe, same, "--out", tmp_path / "third", "--set", "sampler.iterations=1")
    assert begun[3:] == ["seed-0"]  # two recipes of the same settings are one row
    assert "seed 0 has ended: 1 of 1 runs" in result.stderr


def test_a_run_without_its_report_is_not_done(recipe, tmp_path, monkeypatch):
    """As a process leaves it that is killed after it has written the metrics."""
    out = tmp_path / "out"

    with monkeypatch.context() as patch:
        patch.setattr("pml_ext_train.results.finish.write_run_report", Mock(side_effect=OSError("killed")))
        compare(recipe, "--out", out)
    (metrics,) = out.rglob("metrics.json")
    report = metrics.parent / "report.html"
    assert not report.exists()
    before = metrics.read_bytes()
    assert compare(recipe, "--out", out).exit_code == 0
    assert metrics.read_bytes() == before
    assert {"report.html", "metrics.json"} <= read_sums(metrics.parent).keys()
    time = report.stat().st_mtime_ns
    compare(recipe, "--out", out)
    assert report.stat().st_mtime_ns == time


@pytest.mark.usefixtures("without_report")
def test_a_failed_run_stays_in_the_table(recipe, tmp_path):
    failed = compare(recipe, "--out", tmp_path / "out", "--seeds", 2, "--set", "model.init=x")
    assert failed.exit_code != 0  # both fail: nothing to compare
    assert re.search("has no finished run; .*seed 0: model.init: x is not a finished run", str(failed.exception))
    assert "--phase" not in str(failed.exception)
    bad = tmp_path / "bad.toml"
    bad.write_text('extends = "one.toml"\nmodel = { init = "nowhere" }\n')
    result = compare(bad, recipe, "--out", tmp_path / "out", "--json")
    assert result.exit_code == 1
    value = json.loads(result.stdout)
    assert [row["seeds"] for row in value["recipes"]] == [[], [0]]
    assert value["differences_from"] == recipe  # the first with a run
    for text in (str(value["recipes"][0]["errors"]), (tmp_path / "out/comparison.md").read_text()):
        assert "model.init: nowhere is not a finished run" in text


@pytest.mark.usefixtures("without_report")
def test_a_phase_without_clusters_has_default_metrics(recipe, tmp_path):
    words = ["--set", "evaluation.training_images=10", "--phase", "training"]
    result = compare(recipe, "--out", tmp_path / "out", "--json", *words)
    assert json.loads(result.stdout)["metrics"] == ["recall_at_1", "map_at_r"]


def test_a_probe_of_no_trunk_is_refused(pml_ext_command, tmp_path):
    done = pml_ext_command("probe", "digits", "--trunks", " , ", "--out", tmp_path / "out")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--trunks ' , ': wanted names of trunks" in done.stderr


def test_options_that_do_not_go_together(tmp_path):
    for words, text in (
        (["cbml/digits"], "no folder cbml/digits; to run it as a recipe, add --out FOLDER"),
        (["cbml/digit", "--out", tmp_path], "no recipe 'cbml/digit'; nearest: cbml/digits"),
        ([], "no recipe or folder of runs given"),
        (["cbml/digits", "--out", tmp_path, "--folds", 1], "--folds 1: wanted 2 or more"),
        ([tmp_path, "--latex"], "--latex needs --out FOLDER"),
        ([tmp_path, "--seeds", 5], "--seeds, --folds, --jobs, --tune, --on and --set need recipes to run"),
        ([tmp_path, "--on", "slurm"], "--on and --set need recipes to run; only folders"),
        ([tmp_path, "--set", "schedule.epochs=1"], "--on and --set need recipes to run; only folders"),
        (["cbml/digits", "--out", tmp_path, "--save-recipe"], "--save-recipe needs --tune TRIALS"),
    ):
        assert text in str(compare(*words).exception)


UNSEEN = SMALL.replace("batch_size = 20", "batch_size = 4") + "data = { name = 'digits-unseen' }\n"


@pytest.mark.usefixtures("without_report")
def test_two_comparisons_do_a_run_only_once(recipe, tmp_path, begun):
    (plan,) = plans_of(load_recipes(recipe), tmp_path / "out")
    held = threading.Event()

    def other():  # another comparison is at this run, and ends it
        with run_lock(plan.folder):
            held.set()
            execute(plan, "cpu", resume=True)

    thread = threading.Thread(target=other)
    thread.start()
    held.wait()
    assert do([RunJob(plan, "cpu", None)], Executor(), silent) == {}
    thread.join()
    assert (plan.folder / "metrics.json").exists()
    assert begun == []


def plans_in_folds(tmp_path, more="", seeds=1):
    file = tmp_path / "one.toml"
    file.write_text(UNSEEN + more)
    return plans_of(load_recipes(str(file)), tmp_path / "out", seeds=seeds, folds=2)


@pytest.mark.usefixtures("without_report")
def test_folds_have_disjoint_classes_and_one_mean(tmp_path):
    plans = plans_in_folds(tmp_path, seeds=2)
    assert [plan.folder.name for plan in plans] == ["seed-0-fold-1", "seed-1-fold-1", "seed-0-fold-2", "seed-1-fold-2"]
    (group,) = rows_of(plans, [], Executor(), silent, "cpu")
    assert group.errors == {}
    assert {seed: sorted(runs) for seed, runs in group.runs.items()} == {0: [1, 2], 1: [1, 2]}
    assert group.selection() == "50 % of training classes"
    for by_fold in group.runs.values():
        one, other = (run["images"] for run in by_fold.values())
        assert one["validation"]["classes"] + other["validation"]["classes"] == 5
        assert one["test"] == other["test"] == {"images": 896, "classes": 5}
    recalls = [run["after"]["recall_at_1"] for run in group.runs[0].values()]
    assert group.values("after", "recall_at_1")[0] == pytest.approx(sum(recalls) / 2)
    del group.runs[1][2]
    assert [*group.values("after", "recall_at_1")] == [0]  # a seed that lacks a fold does not count


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
    assert with_settings(recipe, settings, "one").as_dict() == load_recipe("cbml/digits", settings).as_dict()


def test_folds_leave_each_variant_its_own_evaluation(tmp_path):
    sweep = """[sweep]
"evaluation.recall_at" = [[1], [1, 2]]
[sweep.rows.by-nmi]
evaluation = { validation = 0.5, select = "nmi" }
[sweep.rows.last]
"""
    plans = plans_in_folds(tmp_path, sweep)
    found = {(plan.name.partition("@")[2], plan.recipe.evaluation.fold): plan.recipe.evaluation for plan in plans}
    assert len(found) == 8
    for (variant, _), evaluation in found.items():
        assert evaluation.select == ("nmi" if variant.endswith("by-nmi") else "map_at_r")
        assert evaluation.recall_at == ([1, 2] if variant.startswith("[1, 2]") else [1])
        assert evaluation.validation == 0.5
    assert RunJob(plans[0], "cpu", None).name.endswith(", seed 0, fold 1")


def test_a_fold_that_always_fails_leaves_nothing(tmp_path, monkeypatch):
    def execute_first_fold(plan, *_, **__):
        if plan.recipe.evaluation.fold == 2:
            raise OSError("no memory")
        finished_run(plan.folder, plan.name, plan.seed, 0.5)
        text = tomli_w.dumps(plan.recipe.as_dict() | {"run": {"recipe": plan.name, "seed": plan.seed}})
        (plan.folder / "recipe.toml").write_text(text)

    monkeypatch.setattr(runs, "execute", execute_first_fold)
    (group,) = rows_of(plans_in_folds(tmp_path, seeds=2), [], Executor(), silent, "cpu")
    assert group.values("after", "recall_at_1") == {}
    assert [error.partition("one.toml")[2] for error in group.errors] == [", seed 0, fold 2", ", seed 1, fold 2"]
