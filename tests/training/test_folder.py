"""The files of a run's folder, and the error of a folder without a finished run."""

import json

from pml_ext.files.checksums import SUMS, changed_files
from pml_ext.training.folder import METRICS, no_finished_run, write_checksums, write_json


def test_advice_of_an_unfinished_run_is_to_resume(tmp_path):
    command = f"pml-ext train RECIPE --out {tmp_path}"
    assert str(no_finished_run(tmp_path, METRICS)) == (
        f"{tmp_path}: no finished run (no metrics.json in it); type: {command}"
    )
    (tmp_path / "checkpoints").mkdir()
    assert str(no_finished_run(tmp_path, METRICS)).endswith(f"type: {command} --resume")


def test_written_json_has_a_checksum(tmp_path):
    write_json(tmp_path, METRICS, {"seed": 3})
    assert json.loads((tmp_path / METRICS).read_text()) == {"seed": 3}
    assert changed_files(tmp_path) == []
    (tmp_path / METRICS).write_text("{}")
    assert changed_files(tmp_path) == [METRICS]


def test_checksums_leave_out_files_of_others(tmp_path):
    (tmp_path / METRICS).write_text("{}")
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures/drawn.png").write_bytes(b"png")
    (tmp_path / "figures/notes.txt").write_text("mine")
    write_checksums(tmp_path)
    listed = {line.split()[-1] for line in (tmp_path / SUMS).read_text().splitlines()}
    assert listed == {METRICS, "figures/drawn.png"}
