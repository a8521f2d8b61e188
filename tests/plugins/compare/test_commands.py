"""``pml-ext compare`` as it is typed: what it runs, prints and refuses."""

import json

import pytest
from scipy import stats

from pml_ext_train.files.checksums import read_sums

from .examples import ONE, OTHER, compare


def test_the_command_prints_rows_and_differences(folder):
    result = compare(folder / "runs")
    assert result.exit_code == 0
    assert "Recall@1" in result.stdout
    assert "recall_at_1" not in result.stdout
    lines = result.stdout.splitlines()
    wanted = "cbml/a loss.mvc_weight=1.0 5 71.4 ± 2.3 35.7 ± 1.2 50.0 ± 0.0"
    assert wanted in [" ".join(line.split()) for line in lines]
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
    first = compare(recipe, "--out", out, "--json", "--set", "sampler.iterations=1")
    assert first.exit_code == 0, first.exception
    assert begun == ["seed-0"]
    assert compare(recipe, "--out", out, "--seeds", 2, "--set", "sampler.iterations=1").exit_code == 0
    assert begun == ["seed-0", "seed-1"]  # not seed 0 again
    other = tmp_path / "other"  # the folder's runs are those of the same recipe, settings and seed
    result = compare(recipe, out, "--out", other, "--seeds", 2, "--set", "sampler.iterations=1", "--json", "--latex")
    assert begun == ["seed-0", "seed-1"]
    (row,) = json.loads(result.stdout)["recipes"]
    assert row["seeds"] == [0, 1]
    names = {path.name for path in other.iterdir()}
    assert names == {f"comparison.{end}" for end in ("json", "csv", "md", "html", "tex")}
    assert json.loads((other / "comparison.json").read_text()) == json.loads(result.stdout)
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

    def killed(*_):
        raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr("pml_ext_train.results.finish.write_run_report", killed)
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
def test_a_failed_run_stays_in_the_table(recipe, tmp_path):
    failed = compare(recipe, "--out", tmp_path / "out", "--seeds", 2, "--set", "model.init=x")
    assert failed.exit_code != 0  # both fail: nothing to compare
    assert "has no finished run; " in str(failed.exception)
    assert "seed 0: model.init: x is not a finished run" in str(failed.exception)
    assert "--phase" not in str(failed.exception)
    bad = tmp_path / "bad.toml"
    bad.write_text('extends = "one.toml"\nmodel = { init = "nowhere" }\n')
    result = compare(bad, recipe, "--out", tmp_path / "out", "--json")
    assert result.exit_code == 1
    value = json.loads(result.stdout)
    assert [row["seeds"] for row in value["recipes"]] == [[], [0]]
    assert value["differences_from"] == recipe  # the first with a run
    assert "model.init: nowhere is not a finished run" in str(value["recipes"][0]["errors"])
    assert "model.init: nowhere is not a finished run" in (tmp_path / "out/comparison.md").read_text()


@pytest.mark.usefixtures("without_report")
def test_a_phase_without_clusters_has_default_metrics(recipe, tmp_path):
    words = ["--set", "evaluation.training_images=10", "--phase", "training"]
    result = compare(recipe, "--out", tmp_path / "out", "--json", *words)
    assert result.exit_code == 0, result.exception
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
