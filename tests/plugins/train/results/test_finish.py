"""The results of a run: metrics, report and checksums, and what is written again."""

import base64
import shutil
import sys
from unittest.mock import Mock

import pytest

from pml_ext import registry
from pml_ext.errors import DataError
from pml_ext_train.files.checksums import changed_files, missing_files
from pml_ext_train.launch.launch import draw_report
from pml_ext_train.records import read_metrics

from ..training.whole_runs import QUICK, Ear, quick


def test_a_setback_is_printed_and_in_the_report(tmp_path, pml_ext_command):
    settings = [*QUICK, "optimizer.lr=3", "evaluation.figures=few", "evaluation.training_images=0"]
    options = [word for setting in settings for word in ("--set", setting)]
    printed = pml_ext_command("train", "cbml/digits", "--out", tmp_path / "run", "--device", "cpu", *options).stdout
    text = "The trained network is behind the raw pixels: Recall@1 is "
    assert text in printed
    assert text in (tmp_path / "run" / "report.html").read_text()
    assert "recall_at_1" not in printed


def test_metrics_are_written_before_the_report(tmp_path, monkeypatch):
    drawn = []

    full = Mock(side_effect=OSError("no space left on device"))
    monkeypatch.setattr("pml_ext_train.results.finish.write_run_report", full)
    with pytest.raises(OSError, match="no space left"):
        quick(tmp_path / "out", "schedule.epochs=1", "schedule.milestones=[1]")
    written = read_metrics(tmp_path / "out" / "metrics.json")
    left = [tmp_path / "out" / name for name in (".SHA256SUMS.1-1.tmp", "records/.loss_histories.csv.1-1.tmp")]
    for path in left:  # as a process leaves them that is killed while it writes the report
        path.write_text("half of it")
    monkeypatch.setattr("pml_ext_train.results.finish.write_run_report", lambda *given: drawn.append(given[2]))
    resumed = quick(tmp_path / "out", "schedule.epochs=1", "schedule.milestones=[1]", resume=True)
    assert drawn == [written]
    assert {key: value for key, value in resumed.items() if key not in ("folder", "verdict")} == written
    assert not any(path.exists() for path in left)


def test_lost_files_are_written_without_failing_figures(finished, tmp_path, monkeypatch):
    fails = Mock(side_effect=ValueError("bins must increase\nmonotonically"))
    out = shutil.copytree(finished[0], tmp_path / "out")
    ear = Ear()
    (out / "report.html").unlink()
    gone = [out / "network.json", next((out / "records").glob("*.csv"))]
    whole = [path.read_bytes() for path in gone]
    for path in gone:
        path.unlink()
    (out / "checkpoints" / "previous.pt").unlink()  # which may be deleted, and says nothing
    (out / "checkpoints" / "last.pt").write_bytes(b"")
    before = {path.name: path.read_bytes() for path in (out / "figures").iterdir()}
    monkeypatch.setattr("pml_ext_train.report.figures.similarity_distributions", fails)
    drawn_with = registry.get("cbml", "loss").cls  # a plugin that was loaded again has another class
    monkeypatch.setattr(drawn_with, "figures", lambda *_: sys.exit("no more"), raising=False)
    assert draw_report(out, "cpu", listener=ear) == out / "report.html"
    after = {path.name: path.read_bytes() for path in (out / "figures").glob("*.png")}
    assert set(before) - set(after) == {"similarities-of-positive-and-negative-pairs.png"}  # no stale picture is left
    assert after == {name: before[name] for name in after}  # and the others are as they were
    report = (out / "report.html").read_text()
    shown = [base64.b64encode(after[name]).decode() for name in after]  # that of CBML is of the earlier report
    assert sum(f"data:image/png;base64,{picture}" in report for picture in shown) == len(after) - 1
    assert report.count("This figure could not be drawn: ") == 2
    assert "This figure could not be drawn: ValueError: bins must increase</div>" in report
    assert [text.partition("; ")[0] for text in ear.warnings] == [
        f"{out}: damaged or changed, according to SHA256SUMS: checkpoints/last.pt, network.json, "
        f"records/{gone[1].name}",
        "the figure 'Similarities of positive and negative pairs' is left out of the report: "
        "ValueError: bins must increase",
        "the figure 'Figures of CBMLLoss' is left out of the report: SystemExit: no more",
    ]
    assert [path.read_bytes() for path in gone] == whole
    assert (changed_files(out), missing_files(out)) == (["checkpoints/last.pt"], [])
    with pytest.raises(DataError, match=r"no finished run \(no recipe.toml in it\); type: pml-ext train RECIPE --out"):
        draw_report(tmp_path)
