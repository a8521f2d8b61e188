"""Files replaced atomically, locked folders, and values from JSON, TOML and options."""

import errno
import multiprocessing
import os
import re
import signal
import stat
import threading
from unittest.mock import Mock

import pytest

from pml_ext.errors import ConfigError, DataError, UnwritableError
from pml_ext_train.files.atomic import (
    DamagedError,
    check_writable,
    final_path,
    locked_folder,
    read_json,
    read_toml,
    toml_value,
    write_atomically,
    write_json,
    write_text,
    writing,
)

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
    monkeypatch.setattr("filelock.FileLock.acquire", Mock(side_effect=NotImplementedError("no flock")))
    text = f"{tmp_path}: its file system has no locks; choose a folder on another one"
    with pytest.raises(UnwritableError, match=text), locked_folder(tmp_path):
        pass


def hold(folder, locked, done):
    with locked_folder(folder):
        locked.set()
        done.wait(60)


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
