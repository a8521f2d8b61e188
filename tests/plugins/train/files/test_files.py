"""Files replaced atomically and with their checksums, locked folders, free names, and values from JSON and TOML."""

import errno
import multiprocessing
import os
import re
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from unittest.mock import DEFAULT, Mock, patch

import pytest

from pml_ext.errors import ConfigError, DataError, UnwritableError
from pml_ext_train.files import (
    MISSING,
    DamagedError,
    as_spelled,
    check_writable,
    checksums,
    composed,
    doubt_about,
    file_stat,
    final_path,
    free_name,
    free_names,
    locked_folder,
    path_bytes,
    read_json,
    read_toml,
    rename_file,
    toml_value,
    write_atomically,
    write_json,
    write_text,
    writing,
)
from pml_ext_train.files.checksums import SUMS, changed_files, read_sums
from pml_ext_train.records import check_unchanged, read_metrics
from pml_ext_train.training import load

from ...search.conftest import full


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_seen_old_or_new(tmp_path):
    file = tmp_path / "below" / "one"
    write_text(file, "old")

    def look(temporary):
        temporary.write_text("new")
        assert file.read_text() == "old"
        assert final_path(temporary) == file

    ready = []
    write_atomically(file, look, lambda temporary: ready.append(temporary.read_text()))
    assert (file.read_text(), ready, names(file.parent)) == ("new", ["new"], ["one"])


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("ready", [None, lambda temporary: None])
def test_errors_remove_a_half_written_file(tmp_path, kind, ready):
    file = tmp_path / "one"
    file.write_text("old")

    def half(temporary):
        temporary.write_text("ne")
        raise kind

    with pytest.raises(kind):
        write_atomically(file, half, ready)
    left = [name for name in names(tmp_path) if name != "one"]
    assert file.read_text() == "old"
    assert len(left) == (kind is KeyboardInterrupt and ready is not None)
    assert all(re.fullmatch(r"\.one\.\d+-\d+-\d+\.tmp", name) for name in left)


def test_disk_errors_have_the_path(tmp_path):
    with pytest.raises(UnwritableError, match=r"^.*one: cannot be written \(No space left on device\); what was writt"):
        write_atomically(tmp_path / "one", full)
    with pytest.raises(UnwritableError, match="No such file or directory; the folder .*/a/b is gone"):
        write_text(tmp_path / "a" / "b" / "one", "text")
    with pytest.raises(UnwritableError, match=r"\(Permission denied\); what"), writing(tmp_path / "a" / "one"):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    assert names(tmp_path) == []


def test_a_folder_without_fsync_is_written(tmp_path, monkeypatch):
    """CIFS and some FUSE file systems have none."""
    synced = os.fsync

    def fsync(handle):
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        synced(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    write_text(tmp_path / "one", "text")
    assert (tmp_path / "one").read_text() == "text"


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))))
    with (
        pytest.raises(
            UnwritableError, match=f"{tmp_path}: its file system has no locks; choose a folder on another one"
        ),
        locked_folder(tmp_path),
    ):
        pass


def hold(folder, locked, done):
    with locked_folder(folder):
        locked.set()
        done.wait(60)


@pytest.mark.nightly
def test_a_locked_folder_excludes_other_processes(tmp_path):
    context = multiprocessing.get_context("spawn")
    locked = context.Event()
    done = context.Event()
    folder = tmp_path / "new" / "folder"
    other = context.Process(target=hold, args=(folder, locked, done))
    other.start()
    try:
        assert locked.wait(60)
        with pytest.raises(DataError, match="taken"), locked_folder(folder, DataError("taken")):
            pass
        threading.Timer(0.3, done.set).start()
        with pytest.warns(UserWarning, match="waiting"), locked_folder(folder, UserWarning("waiting")):
            assert done.is_set()
    finally:
        done.set()
        other.join(60)
    with locked_folder(folder, DataError("taken")):  # free again
        pass


@pytest.mark.parametrize(
    ("text", "reason"),
    [(b"{", "not JSON: "), (b"\xff", "not JSON: "), (b"[1]", "it contains a list"), (b"[" * 10**5, "not JSON")],
)
def test_anything_but_a_json_object_is_damaged(tmp_path, text, reason):
    file = tmp_path / "one.json"
    write_json(file, {"a": [1, None], "ä": "\ud83d\ude00"})
    assert read_json(file) == {"a": [1, None], "ä": "😀"}
    file.write_bytes(text)
    with pytest.raises(DamagedError, match=f"^{reason}"):
        read_json(file)
    file.unlink()
    with pytest.raises(FileNotFoundError):
        read_json(file)


@pytest.mark.parametrize(("text", "reason"), [(b"run = 3", r"no table \[run\] in it"), (b"\xff", "not TOML: ")])
def test_toml_without_its_table_is_damaged(tmp_path, text, reason):
    file = tmp_path / "one.toml"
    file.write_text("[run]\nseed = 3\n")
    assert read_toml(file, "run") == {"run": {"seed": 3}}
    file.write_bytes(text)
    with pytest.raises(DamagedError, match=reason):
        read_toml(file, "run")


@pytest.mark.parametrize(
    ("text", "value"),
    [("0.1", 0.1), ("true", True), ("[1, 2]", [1, 2]), ("'a'", "a"), ("cbml", "cbml"), ("a = b", "a = b"), ("", "")],
)
def test_values_are_toml_or_plain_text(text, value):
    found = toml_value(text, "--set key")
    assert (found, type(found)) == (value, type(value))


def test_an_integer_may_be_too_long():
    with pytest.raises(ConfigError, match=r"^--set key=9+ ... 9+: "):
        toml_value("9" * 5000, "--set key")


@pytest.mark.parametrize(
    ("option", "name", "is_file", "text"),
    [
        ("--out", "", True, " is a folder; type --out FILE"),
        ("--out", "file", False, "file is a file; type --out FOLDER"),
        ("--out", "file/below", False, r"file/below cannot be written \(Not a directory: .*file\); type --out FOLDER"),
        ("", "file/below", False, r"below cannot be written \(Not a directory: \S*file\)"),
        ("-o", "x" * 300, False, r"cannot be written \(File name too long: .*\); type -o FOLDER"),
        ("-o", "x" * 300, True, r"cannot be written \(File name too long: .*\); type -o FILE"),
    ],
)
def test_unwritable_places_are_found_before_writing(tmp_path, option, name, is_file, text):
    (tmp_path / "file").touch()
    check_writable("--out", tmp_path / "a" / "b")
    check_writable("--out", tmp_path / "file", file=True)
    assert names(tmp_path) == ["file"]  # nothing is created
    with pytest.raises(ConfigError, match=f"{text}$"):
        check_writable(option, tmp_path / name, is_file)


def killed_while_writing(file):
    def half(temporary):
        temporary.write_text("ha")
        os.kill(os.getpid(), signal.SIGKILL)

    write_atomically(file, half)


def test_leftovers_of_killed_processes_are_removed(tmp_path):
    file = tmp_path / "answers [1].jsonl"
    process = multiprocessing.get_context("fork").Process(target=killed_while_writing, args=(file,))
    process.start()
    process.join(60)
    (left,) = names(tmp_path)
    assert final_path(tmp_path / left) == file
    other_machine = tmp_path / re.sub(r"-\d+\.tmp$", "-7.tmp", left)
    other_machine.write_text("in use")
    in_use = tmp_path / re.sub(rf"\.{process.pid}-\d+", f".{os.getpid()}-1", left)
    in_use.write_text("of another thread")
    write_text(file, "whole")
    assert names(tmp_path) == sorted([file.name, other_machine.name, in_use.name])


def test_a_file_has_the_usual_mode(tmp_path):
    def private(temporary):
        temporary.unlink(missing_ok=True)
        os.close(os.open(temporary, os.O_CREAT | os.O_WRONLY, 0o600))

    write_atomically(tmp_path / "private", private)
    (tmp_path / "usual").write_text("")
    assert (tmp_path / "private").stat().st_mode == (tmp_path / "usual").stat().st_mode


# Checksums


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
def test_a_kill_leaves_one_whole_file(tmp_path, number):
    """The kill precedes the checksums, or comes between them and the file."""
    (tmp_path / "below").mkdir()
    put(tmp_path, "below/one")
    killed = Mock(wraps=os.replace, side_effect=[*[DEFAULT] * (number - 1), KeyboardInterrupt])
    with patch("os.replace", killed), pytest.raises(KeyboardInterrupt):
        put(tmp_path, "below/one", "new")
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


def test_disk_errors_leave_the_old_file(tmp_path):
    put(tmp_path, "one")
    text = rf"^{tmp_path}/.*: cannot be written \(No space left on device\)"
    for function in ("os.fsync", "os.replace", "hashlib.file_digest"):
        with patch(f"pml_ext_train.files.checksums.{function}", full), pytest.raises(UnwritableError, match=text):
            put(tmp_path, "one", "new")
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


# Free names


def test_a_taken_name_gets_a_number(tmp_path):
    photo = tmp_path / "a.b.jpg"
    assert free_name(photo) == photo
    photo.touch()
    (tmp_path / "a.b-2.jpg").symlink_to("gone")  # a broken link also takes a name
    assert free_name(photo) == tmp_path / "a.b-3.jpg"


def test_files_of_one_stem_share_a_number(tmp_path):
    (tmp_path / "a.xmp").touch()
    (tmp_path / "a-2.jpg.xmp").touch()
    assert [path.name for path in free_names(tmp_path, "a", [".jpg", ".xmp", ".jpg.xmp"])] == [
        "a-3.jpg",
        "a-3.xmp",
        "a-3.jpg.xmp",
    ]


def test_a_file_is_renamed_to_a_free_name(tmp_path):
    source, target = tmp_path / "one", tmp_path / "two"
    source.write_bytes(b"one")
    with (
        patch("os.replace", side_effect=OSError(5, "Input/output error")),
        pytest.raises(OSError, match="Input/output"),
    ):
        rename_file(source, target)
    assert os.listdir(tmp_path) == ["one"]
    for taken in (lambda: target.write_bytes(b"two"), lambda: target.symlink_to("gone"), target.mkdir):
        taken()
        assert not rename_file(source, target)
        assert source.read_bytes() == b"one"
        target.rmdir() if target.is_dir() else target.unlink()
    target.touch()  # of a killed call
    assert rename_file(source, target)
    assert (os.listdir(tmp_path), target.read_bytes()) == (["two"], b"one")


# Sizes, times and names


def test_a_changed_file_has_another_stat(tmp_path):
    file = tmp_path / "one"
    file.write_bytes(b"abc")
    os.utime(file, ns=(5, 1_700_000_000_123_456_789))
    assert file_stat(file) == (3, 1_700_000_000_123_456_789)
    os.utime(file, ns=(5, 1_700_000_000_123_456_790))  # within the same microsecond
    assert file_stat(file) == (3, 1_700_000_000_123_456_790)


@pytest.mark.parametrize("name", ["gone", "one/below", "zero\0byte", "x" * 5000])
def test_a_missing_file_has_no_stat(tmp_path, name):
    (tmp_path / "one").write_text("")
    assert file_stat(tmp_path / name) is None
    assert file_stat(tmp_path / "one") != MISSING


def test_a_path_may_not_be_text():
    assert path_bytes("a/b") == b"a/b"
    assert path_bytes("bad\udcff.png") == b"bad\xff.png"
    assert os.fsdecode(path_bytes("ä/中")) == "ä/中"


def test_names_are_compared_as_people_read(tmp_path):
    one, two = "Zo\u00eb", "Zoe\u0308"
    assert composed(one) == composed(two) == one
    (tmp_path / two / "\u1100\u1161").mkdir(parents=True)
    assert as_spelled(tmp_path, f"{one}/\uac00/new.png") == f"{two}/\u1100\u1161/new.png"
    assert as_spelled(tmp_path, f"{one}/b/c") == f"{two}/b/c"
    assert as_spelled(tmp_path, "plain/x.png") == "plain/x.png"
    (tmp_path / one).mkdir()  # both are there
    assert as_spelled(tmp_path, f"{one}/x.png") == f"{one}/x.png"


def test_names_that_differ_in_case_are_doubtful():
    assert doubt_about(["Luna", "luna ", "Zoe"]).startswith(
        "the classes 'Luna' and 'luna ' differ only in case or blanks"
    )
    assert doubt_about(["Luna", "Luna", "Lunar", ""]) == ""
