"""What tools measure on a finished run: in its metrics, report and export."""

import json
import shutil

import pytest

from pml_ext import load_run
from pml_ext.errors import ConfigError, DataError
from pml_ext_train.files import locked_folder
from pml_ext_train.files.checksums import changed_files, replace_file
from pml_ext_train.report import render
from pml_ext_train.results.measurements import Measurement, add_measurement, measurements_of

BETWEEN = ("<!-- measured -->", "<!-- end of measured -->")


def measurement(threshold=0.25, by="embeddings"):
    return Measurement(
        title="Known & new",
        text="Said <briefly>.",
        by=by,
        titles={"threshold": "Threshold"},
        values={"threshold": threshold, "kind": "center", "classes": 3},
    )


@pytest.fixture
def finished(runs, tmp_path):
    """A run with a report in which nothing was measured yet."""
    run = shutil.copytree(runs[0], tmp_path / "a run", ignore=lambda *_: ["collection"])
    text = "before " + render("measured", measured=[]).strip() + " after"
    replace_file(run, "report.html", lambda path: path.write_text(text, "utf-8"))
    return run


def test_a_measurement_is_in_metrics_and_report(finished):
    before = json.loads((finished / "metrics.json").read_text())
    add_measurement(finished, "known_or_new", measurement(0.5))
    add_measurement(finished, "another", measurement(7))
    add_measurement(finished, "known_or_new", measurement(0.25))
    metrics = json.loads((finished / "metrics.json").read_text())
    added = metrics.pop("measured")
    assert metrics == before
    assert added["known_or_new"]["values"] == {"threshold": 0.25, "kind": "center", "classes": 3}
    assert [*added] == ["known_or_new", "another"]
    report = (finished / "report.html").read_text()
    assert report.startswith(f"before {BETWEEN[0]}")
    assert report.endswith(f"{BETWEEN[1]} after")
    assert report.count("<h2>Known &amp; new</h2>") == 2
    assert '<th scope="row">Threshold</th><td>0.25</td>' in report
    assert "Said &lt;briefly&gt;." in report
    assert changed_files(finished) == []


def test_an_export_has_the_measurements_of_its_output(finished, tmp_path):
    run = load_run(finished, "cpu")
    run.export(tmp_path / "without")
    assert "measured" not in json.loads((tmp_path / "without" / "preprocess.json").read_text())
    add_measurement(finished, "known_or_new", measurement())
    for by in ("embeddings", "features"):
        run.export(tmp_path / by, by=by)
    about = json.loads((tmp_path / "embeddings" / "preprocess.json").read_text())
    assert about["measured"] == {"known_or_new": {"threshold": 0.25, "kind": "center", "classes": 3}}
    card = (tmp_path / "embeddings" / "README.md").read_text()
    assert "## Known & new\n\nSaid <briefly>.\n" in card
    assert "| Threshold | 0.25 |" in card
    assert "measured" not in json.loads((tmp_path / "features" / "preprocess.json").read_text())
    assert "Known & new" not in (tmp_path / "features" / "README.md").read_text()


def test_a_report_that_was_changed_by_hand_stays(finished):
    (finished / "report.html").write_text("mine " + "".join(BETWEEN))
    add_measurement(finished, "known_or_new", measurement())
    assert (finished / "report.html").read_text() == "mine " + "".join(BETWEEN)
    assert "measured" in json.loads((finished / "metrics.json").read_text())


def test_faults_leave_the_metrics_unchanged(finished):
    before = (finished / "metrics.json").read_bytes()
    with locked_folder(finished), pytest.raises(ConfigError, match="is being written by another run"):
        add_measurement(finished, "known_or_new", measurement())
    assert (finished / "metrics.json").read_bytes() == before
    (finished / "metrics.json").write_bytes(before + b" ")
    with pytest.raises(DataError, match="not the file that the run wrote"):
        add_measurement(finished, "known_or_new", measurement())
    with pytest.raises(DataError, match="the measurement 'known_or_new' is damaged"):
        measurements_of({"measured": {"known_or_new": {"title": 1}}})
