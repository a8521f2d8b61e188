"""The threshold of known or new in the metrics, report and export of its run."""

import json
import shutil

from pml_ext import load_run
from pml_ext_search.open_set.calibration import Calibration
from pml_ext_search.open_set.measured_threshold import measurement_of

from ..conftest import write_digits

CALIBRATION = Calibration(
    threshold=0.75,
    far=0.05,
    nearest="center",
    by="features",
    identity="id",
    gallery="digest",
    images=40,
    classes=10,
    on="of /home/me/private",
    folder="/home/me/private",
    others=20,
    other_classes=5,
    expected=0.08,
    false_acceptances=0.05,
    own=40,
    true_acceptances=0.5,
)


def test_a_measurement_has_no_path():
    assert "private" not in measurement_of(CALIBRATION).model_dump_json()


def test_each_collection_keeps_its_own_threshold(runs, tmp_path):
    run_folder = shutil.copytree(runs[0], tmp_path / "run", ignore=lambda *_: ["collection"])
    write_digits(tmp_path / "digits", range(100))
    for digit in range(6):
        shutil.copytree(tmp_path / "digits" / str(digit), tmp_path / "enrolled" / f"séal {digit}")
    run = load_run(run_folder, "cpu")
    run.index(tmp_path / "enrolled")
    calibration = run.calibrate(0.3)
    measured = json.loads((run_folder / "metrics.json").read_text())["measured"]["known_or_new"]["values"]
    assert measured["threshold"] == calibration.threshold
    assert measured["false_acceptances_asked_for"] == 0.3
    assert measured["false_acceptances_expected"] == calibration.expected
    run.export(tmp_path / "exported")
    exported = json.loads((tmp_path / "exported" / "preprocess.json").read_text())["measured"]["known_or_new"]
    assert exported == measured
    other = load_run(run_folder, "cpu", store=tmp_path / "store")
    other.index(tmp_path / "enrolled")
    assert other.calibrate(0.5).threshold > calibration.threshold
    after = json.loads((run_folder / "metrics.json").read_text())["measured"]["known_or_new"]["values"]
    assert after == measured


def test_a_run_with_unwritable_metrics_keeps_its_threshold(runs, tmp_path):
    run_folder = shutil.copytree(runs[0], tmp_path / "run", ignore=lambda *_: ["collection"])
    write_digits(tmp_path / "digits", range(100))
    shutil.move(tmp_path / "digits" / "0", tmp_path / "digits" / "zero")
    run = load_run(run_folder, "cpu")
    run.index(tmp_path / "digits")
    (run_folder / "metrics.json").write_text((run_folder / "metrics.json").read_text() + " ")
    told = []
    from pml_ext_search.open_set.identify import Identifier

    threshold = Identifier(run.search_index, run.loaded, told.append).calibration(0.6).threshold
    assert "could not be added to metrics and report: " in told[-2] + told[-1]
    assert Identifier(run.search_index, run.loaded, told.append).calibration().threshold == threshold
