"""The files of a finished run: whole, missing or damaged."""

import shutil

import pytest

from pml_ext.errors import DataError
from pml_ext_train.files.checksums import changed_files, missing_files, read_sums
from pml_ext_train.launch.launch import draw_report
from pml_ext_train.records.run_files import is_finished, read_finished, tables_of_run

from ..training.whole_runs import quick, same


@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize("content", [b"", b"no sums\n", b"\xff\n"])
@pytest.mark.parametrize("again", ["report", "resume"])
def test_damaged_checksums_are_written_again(finished, tmp_path, pml_ext_command, content, again):
    """Also beside files that are not of the run."""
    out = shutil.copytree(finished[0], tmp_path / "out")
    whole = read_sums(out)
    (out / "collection").mkdir()
    (out / "notes.txt").write_text("mine")
    (out / ".notes.5.tmp").write_text("mine")
    (out / "SHA256SUMS").write_bytes(content)
    refused = pml_ext_command("export", str(out), "--out", str(tmp_path / "x"))
    assert refused.returncode == 2
    assert refused.stderr == f"pml-ext: {out}/SHA256SUMS: damaged; type: pml-ext report {out}\n"
    if again == "report":
        assert draw_report(out, "cpu") == out / "report.html"
    else:
        assert same(quick(out, resume=True), finished[1])
    assert read_sums(out).keys() == whole.keys()
    assert changed_files(out) == missing_files(out) == []
    assert (out / ".notes.5.tmp").read_text() == "mine"


def test_a_run_is_finished_with_its_report(finished, tmp_path):
    out = shutil.copytree(finished[0], tmp_path / "out")
    assert is_finished(out)
    assert read_finished(out)[1] == []
    assert tables_of_run(out)["run"]["recipe"] == "cbml/digits"
    (out / "report.html").unlink()
    (out / "checkpoints" / "before.pt").unlink()  # of which nothing is made again
    (out / "network.json").write_text("{}")
    assert read_finished(out)[1] == ["network.json", "report.html"]
    (out / "checkpoints" / "model.pt").unlink()
    assert read_finished(out)[1] == ["checkpoints/model.pt", "network.json", "report.html"]
    (out / "checkpoints" / "last.pt").unlink()
    with pytest.raises(DataError, match="model.pt is missing or damaged, .* to start over at the first epoch"):
        read_finished(out)
    assert not is_finished(tmp_path)
