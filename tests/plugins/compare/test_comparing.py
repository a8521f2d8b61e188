"""Finished runs side by side, against scipy on the numbers themselves."""

import hashlib
import json

import pytest
import tomli_w
from scipy import stats
from typer.testing import CliRunner

from pml_ext.cli.app import app_for
from pml_ext.errors import ConfigError, DataError
from pml_ext.files import write_json
from pml_ext.training.launch import summarize
from pml_ext_compare.comparing import Group, compare, groups_below

ONE = [0.70, 0.72, 0.71, 0.75, 0.69]
OTHER = [0.73, 0.74, 0.72, 0.75, 0.74]


def finished(folder, recipe, seed, recall, **settings):
    folder.mkdir(parents=True)
    tables = {"description": "a test", "loss": {"name": "cbml", **settings}, "data": {"name": "digits"}}
    (folder / "recipe.toml").write_text(tomli_w.dumps(tables | {"run": {"recipe": recipe, "seed": seed}}))
    after = {"recall_at_1": recall, "map_at_r": recall / 2, "nmi": 0.5, "k": "word"}
    write_json(folder / "metrics.json", {"recipe": recipe, "seed": seed, "after": after, "seconds": {"total": 1.0}})


@pytest.fixture
def folder(tmp_path):
    for seed, (one, other) in enumerate(zip(ONE, OTHER, strict=True)):
        finished(tmp_path / f"runs/{seed}", "cbml/a", seed, one, mvc_weight=1.0)
        finished(tmp_path / f"runs/without/{seed}", "cbml/a", seed, other, mvc_weight=0.0)
    return tmp_path


def run(*words):
    return CliRunner().invoke(app_for(["compare"]), ["compare", *map(str, words)])


def test_differences_are_of_the_same_seeds_and_tested_in_pairs(folder):
    twice = groups_below([folder / "runs/without", folder / "runs"])
    assert [len(each.runs) for each in twice] == [5, 5]
    (folder / "runs/0/metrics.json").unlink()  # a seed that only the other has: pairs are by seed, not by place
    one, other = groups_below([folder / "runs"])
    assert (one.name, other.name) == ("cbml/a loss.mvc_weight=1.0", "cbml/a loss.mvc_weight=0.0")
    mine = compare([one, other], ["recall_at_1"])["differences"][0]["recall_at_1"]
    gains = [b - a for a, b in zip(ONE[1:], OTHER[1:], strict=True)]
    assert mine["pairs"] == 4
    assert mine["mean"] == pytest.approx(sum(gains) / 4)
    assert mine["p"] == pytest.approx(stats.ttest_1samp(gains, 0).pvalue)


def test_the_command_prints_rows_and_differences(folder):
    result = run(folder / "runs")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    wanted = "cbml/a loss.mvc_weight=1.0 5 71.4 ± 2.3 35.7 ± 1.2 50.0 ± 0.0"
    assert wanted in [" ".join(line.split()) for line in lines]
    p = stats.ttest_rel(OTHER, ONE).pvalue
    assert any("loss.mvc_weight=0.0" in line and "+2.2 ± 1.9" in line and f"{p:.3f}" in line for line in lines)
    value = json.loads(run(folder / "runs", "--json", "--metric", "nmi").stdout)
    assert value["recipes"][0]["nmi"]["values"] == [0.5] * 5
    assert value["differences"][0]["nmi"].items() >= {"mean": 0.0, "std": 0.0, "p": None, "pairs": 5}.items()


def test_what_is_shown_has_the_metrics_titles(folder):
    words = [folder / "runs", "--out", folder / "out", "--latex"]
    shown = [run(*words).stdout, *((folder / f"out/comparison.{end}").read_text() for end in ("md", "html", "tex"))]
    for text in shown:
        assert "Recall@1" in text
        assert "MAP@R" in text
        assert "recall_at_1" not in text
        assert "map_at_r" not in text


def test_intervals_of_shares_are_cut_at_0_and_1(tmp_path):
    for seed, recall in enumerate((0.91, 0.97, 0.9)):
        finished(tmp_path / f"high/{seed}", "cbml/a", seed, recall)
        finished(tmp_path / f"low/{seed}", "cbml/b", seed, 1 - recall, mvc_weight=0.0)
    groups = groups_below([tmp_path / "high", tmp_path / "low"])
    high, low = (row["recall_at_1"] for row in compare(groups, ["recall_at_1"])["recipes"])
    interval = stats.t.interval(0.95, 2, *(float(x) for x in (high["mean"], high["std"] / 3**0.5)))
    assert interval[1] > 1
    assert (high["low"], high["high"]) == pytest.approx((interval[0], 1.0))
    assert (low["low"], low["high"]) == pytest.approx((0.0, 1 - interval[0]))


def test_what_cannot_be_compared_is_refused(folder):
    with pytest.raises(ConfigError, match=r"no finished run in it; type: pml-ext train"):
        groups_below([folder / "empty"])
    text = "--metric k: cbml/a loss.mvc_weight=1.0 has recall_at_1"
    assert text in str(run(folder / "runs", "--metric", "k").exception)
    assert "has after" in str(run(folder / "runs", "--phase", "x").exception)
    finished(folder / "again/0", "cbml/a", 0, 0.1, mvc_weight=1.0)
    with pytest.raises(ConfigError, match="another run has the same recipe, settings and seed, but other results"):
        groups_below([folder / "runs", folder / "again"])
    for text in ("[run", "[run]\nrecipe = 'cbml/a'\n"):
        (folder / "again/0/recipe.toml").write_text(text)
        with pytest.raises(DataError, match="not the recipe of a run"):
            groups_below([folder / "again"])


def test_metrics_of_another_run_are_refused(folder):
    run_0, run_1 = folder / "runs/0", folder / "runs/1"
    digest = hashlib.sha256((run_1 / "metrics.json").read_bytes()).hexdigest()
    (run_1 / "metrics.json").write_bytes((run_0 / "metrics.json").read_bytes())
    assert groups_below([run_1])
    (run_1 / "SHA256SUMS").write_text(f"{digest}  metrics.json\n")
    with pytest.raises(DataError, match=r"1/metrics.json: not the file that the run wrote"):
        groups_below([folder / "runs"])


def test_one_run_has_no_spread(folder):
    line = next(line for line in run(folder / "runs/0").stdout.splitlines() if line.startswith("cbml/a"))
    assert line.split() == ["cbml/a", "1", "70.0", "±", "-", "35.0", "±", "-", "50.0", "±", "-"]
    (value,) = json.loads(run(folder / "runs/0", "--json").stdout)["recipes"]
    assert value["recall_at_1"] == {"mean": 0.7, "std": None, "low": None, "high": None, "values": [0.7], "paper": []}
    results = [{"recipe": name, "after": {"recall_at_1": 0.5}} for name in ("a@1", "a@2")]
    assert summarize(results)["a@1"]["after"]["recall_at_1"] == {"mean": 0.5, "std": None}


def test_rows_that_differ_in_more_than_the_method_are_marked():
    base = Group("base", {"loss.name": "cbml", "model.trunk.name": "convnet", "sampler.batch_size": 80})
    changes = {
        "trunk": {"model.trunk.name": "resnet"},
        "weights": {"model.trunk.weights": "x"},
        "embedding size": {"model.embedding_size": 128},
        "image size": {"data.images.crop": 227},
        "batch": {"sampler.batch_size": 160},
        "iterations": {"schedule.epochs": 3},
        "augmentation": {"data.augment.shift": 2},
    }
    for name, change in changes.items():
        assert [mark.partition(":")[0] for mark in Group(name, base.settings | change).marks(base)] == [name]
    assert Group("method", base.settings | {"loss.name": "pddm"}).marks(base) == []
    assert Group("tuned", base.settings, trials=20).marks(base) == ["trials: 20 (0 in base)"]
    assert Group("b", base.settings | changes["batch"]).marks(base) == ["batch: 160 (80 in base)"]


def test_a_baseline_is_named_and_the_papers_values_stand_beside(folder):
    value = json.loads(run(folder / "runs", "--json", "--baseline", "cbml/a loss.mvc_weight=0.0").stdout)
    assert value["differences"][0]["recall_at_1"]["mean"] == pytest.approx(-0.022)
    assert "no difference of Recall@1 from cbml/a loss.mvc_weight=0.0 is shown" in value["sentences"][0]
    assert "2 rows have the name 'cbml/a'" in str(run(folder / "runs", "--baseline", "cbml/a").exception)
    paper = {"table": "cbml/7", "row": "CBML + MVC + Hard Mining"}
    values = Group("x", {"data.name": "omniglot-small"}, paper=paper).paper_values("after", "recall_at_1")
    assert values
    assert all(0.5 < each["value"] < 1 and not each["same_data"] for each in values)
    assert Group("x", {"data.name": "omniglot-small"}, paper={"table": "cbml/99"}).paper_values("after", "nmi") == []
