"""One process per folder, and what killed ones leave."""

import json
import os
import socket
import subprocess
import sys
import time

import pytest

from pml_ext.errors import ConfigError
from pml_ext.experiment.lock import LOCK, locked


def hold(folder, **changes):
    mine = {"host": socket.gethostname(), "process": os.getppid(), "since": "2026-01-01T00:00:00+00:00"} | changes
    (folder / LOCK).write_text(json.dumps(mine))


def test_a_living_holder_is_named(tmp_path):
    code = f"""if True:
        import pathlib, sys
        from pml_ext.experiment.lock import locked
        with locked(pathlib.Path({str(tmp_path)!r})):
            print("held", flush=True)
            sys.stdin.read()
    """
    holder = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    wanted = rf"is being written by another run \(process {holder.pid} on {socket.gethostname()}, since 20.*\); wait"
    with pytest.raises(ConfigError, match=wanted), locked(tmp_path):
        pass
    assert (tmp_path / LOCK).exists()
    holder.kill()
    holder.communicate()
    with locked(tmp_path) as word:
        assert f"process {holder.pid}" in word
        assert "is gone, and its lock is taken over" in word
    assert not (tmp_path / LOCK).exists()


def test_a_number_that_another_process_has_now_is_stale(tmp_path):
    hold(tmp_path, began="another boot 17")
    with locked(tmp_path) as word:
        assert "taken over" in word
    hold(tmp_path)
    with pytest.raises(ConfigError, match="is being written"), locked(tmp_path):
        pass
    hold(tmp_path, process=os.getpid())  # a container that was started again
    with locked(tmp_path):
        pass


def test_a_holder_on_another_machine_is_dead_after_five_minutes(tmp_path):
    hold(tmp_path, host="elsewhere")
    with pytest.raises(ConfigError, match="on elsewhere, since"), locked(tmp_path):
        pass
    os.utime(tmp_path / LOCK, (time.time() - 301,) * 2)
    with locked(tmp_path) as word:
        assert "on elsewhere" in word


@pytest.mark.parametrize("content", [b"", b"[1]", b"\xff{"])
def test_a_damaged_lock_is_taken_over(tmp_path, content):
    (tmp_path / LOCK).write_bytes(content)
    with locked(tmp_path) as word:
        assert "is damaged" in word


def test_the_holder_shows_that_it_lives(tmp_path, monkeypatch):
    monkeypatch.setattr("pml_ext.experiment.lock._BEAT", 0.01)
    with locked(tmp_path) as word:
        assert word == ""
        os.utime(tmp_path / LOCK, (0, 0))
        deadline = time.monotonic() + 10
        while (tmp_path / LOCK).stat().st_mtime == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert time.time() - (tmp_path / LOCK).stat().st_mtime < 60
