"""The files of a finished run: whole, missing or damaged."""

import shutil

import pytest

from pml_ext.errors import DataError
from pml_ext_train.files.checksums import SUMS, changed_files, read_sums, sha256_of
from pml_ext_train.records import run_files as files


def test_a_run_is_finished_with_its_report(finished, tmp_path):
    out = shutil.copytree(finished[0], tmp_path / "out")
    assert files.is_finished(out)
    assert files.read_finished(out)[1] == []
    assert files.tables_of_run(out)["run"]["recipe"] == "cbml/digits"
    (out / "report.html").unlink()
    (out / "checkpoints" / "before.pt").unlink()  # of which nothing is made again
    (out / "network.json").write_text("{}")
    assert files.read_finished(out)[1] == ["network.json", "report.html"]
    (out / "checkpoints" / "model.pt").unlink()
    assert files.read_finished(out)[1] == ["checkpoints/model.pt", "network.json", "report.html"]
    (out / "checkpoints" / "last.pt").unlink()
    with pytest.raises(DataError, match="model.pt is missing or damaged, .* to start over at the first epoch"):
        files.read_finished(out)
    assert not files.is_finished(tmp_path)


OF_A_RUN = [
    "checkpoints/model.pt",
    "figures/loss.png",
    "metrics.json",
    "network.json",
    "recipe.toml",
    "records/logs.db",
    "report.html",
    "tensorboard/epochs/events",
]
OTHERS = ["notes.txt", "figures/mine.txt", "collection/rows", SUMS]
OTHERS += [".metrics.json.5-6.tmp", "checkpoints/.model.pt.5.tmp"]


def made(place):
    for name in [*OF_A_RUN, *OTHERS]:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(name)
    (place / SUMS).unlink()


def test_checksums_are_of_the_runs_files_alone(tmp_path):
    made(tmp_path)
    files.write_checksums(tmp_path)
    assert read_sums(tmp_path) == {name: sha256_of(tmp_path / name) for name in OF_A_RUN}


def test_checksums_of_checkpoints_and_lost_files_stay(tmp_path):
    """A checkpoint has its checksum from when it was written; that of a damaged file tells of the damage."""
    made(tmp_path)
    files.write_checksums(tmp_path)
    for name in ("checkpoints/model.pt", "records/logs.db", "report.html"):
        (tmp_path / name).write_text("changed")
    files.write_checksums(tmp_path, lost=["records/logs.db"])
    assert sorted(changed_files(tmp_path)) == ["checkpoints/model.pt", "records/logs.db"]


def test_advice_of_an_unfinished_run_is_to_resume(tmp_path):
    command = f"pml-ext train RECIPE --out {tmp_path}"
    assert str(files.no_finished_run(tmp_path, files.METRICS)) == (
        f"{tmp_path}: no finished run (no metrics.json in it); type: {command}"
    )
    spaced = tmp_path / "my run"
    assert str(files.no_finished_run(spaced, files.METRICS)).endswith(f"pml-ext train RECIPE --out '{spaced}'")
    (tmp_path / "checkpoints").mkdir()
    assert str(files.no_finished_run(tmp_path, files.METRICS)).endswith(f"type: {command} --resume")


def test_only_the_files_of_a_run_are_removed(tmp_path):
    made(tmp_path)
    (tmp_path / SUMS).write_text("sums")
    (tmp_path / "choice.json").write_text("{}")
    files.remove_run(tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"notes.txt", "collection", "choice.json", ".metrics.json.5-6.tmp"}
