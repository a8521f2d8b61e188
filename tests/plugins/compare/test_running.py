"""Runs that a comparison does itself: each once, resumed where it stopped, and rows of what failed."""

import json
import threading

import pytest
from typer.testing import CliRunner

from pml_ext.cli.app import app_for
from pml_ext.errors import ConfigError
from pml_ext.files.checksums import read_sums
from pml_ext.recipe import load_recipes, reported_phases
from pml_ext.training.launch import execute
from pml_ext_compare import running
from pml_ext_compare.executors import Executor, do
from pml_ext_compare.running import RunJob, plans_of, recipes_of_table, rows_of, run_lock

from .test_executors import SMALL

SILENT = lambda job, said: None  # noqa: E731


@pytest.fixture
def recipe(tmp_path):
    file = tmp_path / "one.toml"
    file.write_text(SMALL)
    return str(file)


@pytest.fixture
def counted(monkeypatch):
    """The runs that were begun, in place of those that were looked at."""
    begun = []

    def counting(plan, *arguments, **named):
        if not (plan.folder / "metrics.json").exists():
            begun.append(plan.folder.name)
        return execute(plan, *arguments, **named)

    monkeypatch.setattr(running, "execute", counting)
    return begun


def compare(*words):
    return CliRunner().invoke(app_for(["compare"]), ["compare", *map(str, words)], catch_exceptions=True)


@pytest.mark.usefixtures("without_report")
def test_only_missing_runs_are_done_and_folders_count(recipe, tmp_path, counted):
    out = tmp_path / "out"
    first = compare(recipe, "--out", out, "--json", "--set", "sampler.iterations=1")
    assert first.exit_code == 0, first.exception
    assert counted == ["seed-0"]
    assert compare(recipe, "--out", out, "--seeds", 2, "--set", "sampler.iterations=1").exit_code == 0
    assert counted == ["seed-0", "seed-1"]  # not seed 0 again
    other = tmp_path / "other"  # the folder's runs are those of the same recipe, settings and seed
    result = compare(recipe, out, "--out", other, "--seeds", 2, "--set", "sampler.iterations=1", "--json", "--latex")
    assert counted == ["seed-0", "seed-1"]
    (row,) = json.loads(result.stdout)["recipes"]
    assert row["seeds"] == [0, 1]
    names = {path.name for path in other.iterdir()}
    assert names == {f"comparison.{end}" for end in ("json", "csv", "md", "html", "tex")}
    assert json.loads((other / "comparison.json").read_text()) == json.loads(result.stdout)
    compare(recipe, out, "--out", other, "--set", "sampler.iterations=2")
    assert counted == ["seed-0", "seed-1", "seed-0"]  # other settings are another run
    same = tmp_path / "same.toml"
    same.write_text('extends = "one.toml"\n')
    result = compare(recipe, same, "--out", tmp_path / "third", "--set", "sampler.iterations=1")
    assert counted[3:] == ["seed-0"]  # two recipes of the same settings are one row
    assert "seed 0 has ended: 1 of 1 runs" in result.stderr


def test_a_run_without_its_report_is_not_done(recipe, tmp_path, monkeypatch):
    """As a process leaves it that is killed after it has written the metrics."""
    out = tmp_path / "out"

    def killed(*_):
        raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr("pml_ext.training.results.write_run_report", killed)
        compare(recipe, "--out", out)
    (metrics,) = out.rglob("metrics.json")
    assert not (metrics.parent / "report.html").exists()
    before = metrics.read_bytes()
    assert compare(recipe, "--out", out).exit_code == 0
    assert metrics.read_bytes() == before
    assert {"report.html", "metrics.json"} <= read_sums(metrics.parent).keys()
    time = (metrics.parent / "report.html").stat().st_mtime_ns
    assert compare(recipe, "--out", out).exit_code == 0
    assert (metrics.parent / "report.html").stat().st_mtime_ns == time


@pytest.mark.usefixtures("without_report")
def test_a_failing_run_stands_in_the_table_and_ends_no_other(recipe, tmp_path):
    failed = compare(recipe, "--out", tmp_path / "out", "--seeds", 2, "--set", "model.init=x")
    assert failed.exit_code != 0  # both fail: nothing to compare
    assert "has no finished run; " in str(failed.exception)
    assert "seed 0: model.init: x is no finished run" in str(failed.exception)
    assert "--phase" not in str(failed.exception)
    bad = tmp_path / "bad.toml"
    bad.write_text('extends = "one.toml"\nmodel = { init = "nowhere" }\n')
    result = compare(bad, recipe, "--out", tmp_path / "out", "--json")
    assert result.exit_code == 1
    value = json.loads(result.stdout)
    assert [row["seeds"] for row in value["recipes"]] == [[], [0]]
    assert value["differences_from"] == recipe  # the first with a run
    assert "model.init: nowhere is no finished run" in str(value["recipes"][0]["errors"])
    assert "model.init: nowhere is no finished run" in (tmp_path / "out/comparison.md").read_text()


@pytest.mark.usefixtures("without_report")
def test_two_comparisons_of_one_folder_do_a_run_once(recipe, tmp_path, counted):
    (plan,) = plans_of(recipe, tmp_path / "out")
    held, ended = threading.Event(), threading.Event()

    def other():  # another comparison is at this run, and ends it
        with run_lock(plan.folder):
            held.set()
            execute(plan, "cpu", resume=True)
        ended.set()

    thread = threading.Thread(target=other)
    thread.start()
    held.wait()
    assert do([RunJob(plan, "cpu", None)], Executor(), SILENT) == {}
    thread.join()
    assert ended.is_set()
    assert counted == []


@pytest.mark.usefixtures("without_report")
def test_folds_are_disjoint_parts_of_the_training_classes_and_one_value_per_seed(tmp_path):
    file = tmp_path / "one.toml"
    file.write_text(SMALL.replace("batch_size = 20", "batch_size = 4") + "data = { name = 'digits-unseen' }\n")
    plans = plans_of(str(file), tmp_path / "out", seeds=2, folds=2)
    assert [plan.folder.name for plan in plans] == ["seed-0-fold-1", "seed-1-fold-1", "seed-0-fold-2", "seed-1-fold-2"]
    (group,) = rows_of(plans, [], Executor(), SILENT, "cpu")
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


def test_recipes_of_a_table_and_what_is_refused(tmp_path):
    assert "cbml/omniglot-small" in recipes_of_table("cbml/7", full=False)
    assert recipes_of_table("cbml/7", full=True) == ["cbml/7"]
    with pytest.raises(ConfigError, match="--table cbml/99: wanted one of"):
        recipes_of_table("cbml/99", full=False)
    for words, text in (
        (["cbml/digits"], "no folder cbml/digits; the runs of a recipe want --out FOLDER"),
        (["cbml/digit", "--out", tmp_path], "no recipe 'cbml/digit'; nearest: cbml/digits"),
        ([], "wanted recipes or folders of runs"),
        (["cbml/digits", "--out", tmp_path, "--folds", 1], "--folds 1: wanted 2 or more"),
        ([tmp_path, "--latex"], "--latex writes to --out FOLDER"),
        ([tmp_path, "--seeds", 5], "--seeds, --folds, --jobs and --tune go with recipes to run"),
        (["cbml/digits", "--out", tmp_path, "--save-recipe"], "--save-recipe goes with --tune TRIALS"),
    ):
        assert text in str(compare(*words).exception)


def test_unknown_metrics_and_phases_end_before_training(recipe, tmp_path, counted):
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
    assert counted == []
    (learned,) = load_recipes("pddm/digits").values()
    assert reported_phases(learned) == ["after", "training", "raw", "before", "learned_metric", "shortlist"]
