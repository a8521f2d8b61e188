"""Files replaced with their checksum, and kills between the two steps."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import DEFAULT, Mock

import pytest

from pml_ext.errors import DataError, UnwritableError
from pml_ext_train.files import checksums
from pml_ext_train.files.checksums import SUMS, changed_files, read_sums
from pml_ext_train.records import check_unchanged, read_metrics
from pml_ext_train.training import load

from ...search.conftest import full


def put(folder, name, text="old"):
    checksums.replace_file(folder, name, lambda path: path.write_text(text))


def test_a_replaced_file_has_its_checksum(tmp_path):
    put(tmp_path, "one")
    put(tmp_path, "below/two")
    put(tmp_path, "one", "new")
    assert read_sums(tmp_path) == {name: checksums.sha256_of(tmp_path / name) for name in ("below/two", "one")}
    done = subprocess.run(["sha256sum", "--check", "--strict", SUMS], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "below/two: OK\none: OK\n")
    assert changed_files(tmp_path) == checksums.missing_files(tmp_path) == []
    (tmp_path / "one").write_text("damaged")
    (tmp_path / "below" / "two").unlink()
    assert (changed_files(tmp_path), checksums.missing_files(tmp_path)) == (["one"], ["below/two"])
    with pytest.raises(DataError, match=r"one: not the file that the run wrote \(see .*SHA256SUMS\); restore it"):
        check_unchanged(tmp_path, "one")
    check_unchanged(tmp_path, "unknown")


@pytest.mark.parametrize("content", [b"", b"no sums\n", b"\xff", b"0" * 64 + b"  cut"])
def test_damaged_checksums_are_not_used(tmp_path, content):
    put(tmp_path, "one")
    (tmp_path / SUMS).write_bytes(content)
    assert read_sums(tmp_path) == {}
    assert changed_files(tmp_path) == [SUMS]
    with pytest.raises(DataError, match=r"SHA256SUMS: damaged; repeat the command that trained it, with --out"):
        check_unchanged(tmp_path, "one")


def test_an_unreadable_file_shows_the_remedy(tmp_path, monkeypatch):
    """Permissions are simulated, because root may read everything."""
    put(tmp_path, "metrics.json", "{}")
    put(tmp_path, "checkpoints/model.pt")
    opened = Path.open

    def refused(path, *arguments, **settings):
        if path.suffix in (".json", ".pt"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, *arguments, **settings)

    monkeypatch.setattr(Path, "open", refused)
    metrics = tmp_path / "metrics.json"
    model = tmp_path / "checkpoints" / "model.pt"
    for path, read in (
        (metrics, lambda: check_unchanged(tmp_path, "metrics.json")),
        (metrics, lambda: read_metrics(metrics)),
        (model, lambda: load(model)),
    ):
        with pytest.raises(DataError, match=f"^{path}: cannot be read .Permission denied.; type: chmod u.r {path}$"):
            read()


def test_checksums_are_computed_again_or_kept(tmp_path):
    for name in ("one", "two", "three"):
        put(tmp_path, name)
        (tmp_path / name).write_text("changed")
    (tmp_path / "three").unlink()
    checksums.write_sums(tmp_path, ["one", "gone"], keep=lambda name: name != "four")
    assert changed_files(tmp_path) == ["two"]
    assert set(read_sums(tmp_path)) == {"one", "two"}


@pytest.mark.parametrize("number", [1, 2])
def test_a_kill_leaves_one_whole_file(tmp_path, monkeypatch, number):
    """The kill precedes the checksums, or comes between them and the file."""
    (tmp_path / "below").mkdir()
    put(tmp_path, "below/one")
    killed = Mock(wraps=os.replace, side_effect=[*[DEFAULT] * (number - 1), KeyboardInterrupt])
    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        put(tmp_path, "below/one", "new")
    monkeypatch.undo()
    checksums.recover(tmp_path, ["below/*"])
    assert (tmp_path / "below" / "one").read_text() == ("new" if number == 2 else "old")
    assert changed_files(tmp_path) == []
    assert sorted(path.name for path in tmp_path.rglob("*")) == [SUMS, "below", "one"]


def test_only_half_written_files_are_removed(tmp_path):
    """A user's file may look like a temporary one."""
    theirs = [".mine.tmp", ".notes.5.tmp", ".one.csv.notes.tmp"]
    (tmp_path / "below").mkdir()
    for name in (".two.4194305.tmp", "below/.one.csv.5-7.tmp", "below/.one.txt.5.tmp", *theirs):
        (tmp_path / name).write_text("half")
    checksums.recover(tmp_path, ["two", "one.csv", "below/*.csv", "gone/*"])
    assert sorted(path.name for path in tmp_path.glob(".*")) == theirs
    assert [path.name for path in (tmp_path / "below").iterdir()] == [".one.txt.5.tmp"]


def test_disk_errors_leave_the_old_file(tmp_path, monkeypatch):
    put(tmp_path, "one")
    for function in ("os.fsync", "os.replace", "hashlib.file_digest"):
        monkeypatch.setattr(f"pml_ext_train.files.checksums.{function}", full)
        with pytest.raises(UnwritableError, match=rf"^{tmp_path}/.*: cannot be written \(No space left on device\)"):
            put(tmp_path, "one", "new")
        monkeypatch.undo()
        assert sorted(path.name for path in tmp_path.iterdir()) == [SUMS, "one"]
    assert (tmp_path / "one").read_text() == "old"
    assert changed_files(tmp_path) == []
    with pytest.raises(UnwritableError, match=r"gone/below/one: cannot be written .*; the folder .*below is gone"):
        put(tmp_path / "gone", "below/one")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_moved_file_survives_power_loss(tmp_path, monkeypatch):
    """Its bytes are flushed before the move, and its folder afterwards."""
    flushed = []
    monkeypatch.setattr(os, "fsync", lambda handle: flushed.append(os.readlink(f"/proc/self/fd/{handle}")))
    put(tmp_path, "one")
    assert flushed[-1] == str(tmp_path)
    assert any(".one." in path for path in flushed[:-1])
