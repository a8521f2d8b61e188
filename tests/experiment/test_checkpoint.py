"""Checkpoints that cannot be used are named in one line, with what to do."""

import errno
import os
import sys

import pytest
import torch

from pml_ext.errors import DataError, UnwritableError
from pml_ext.experiment import checkpoint
from pml_ext.files import write_sealed

REMEDY = {
    "last": r"delete the folder .*checkpoints and train with --resume",
    "previous": r"delete the folder .*checkpoints and train with --resume",
    "within": r"the epoch begins again",
    "model": r"delete .*run/metrics.json and train with --resume",
    "best": r"delete the folder .*checkpoints and train with --resume",
    "before": r"pml-ext report makes it again",
}


def a_state(name):
    return {key: torch.zeros(400) for key in checkpoint._KEYS[f"{name}.pt"]}


@pytest.mark.parametrize("name", REMEDY)
def test_a_damaged_checkpoint_is_one_line_with_its_path(tmp_path, name):
    path = tmp_path / "run" / "checkpoints" / f"{name}.pt"
    with pytest.raises(DataError, match=rf"{name}.pt: no such checkpoint; {REMEDY[name]}"):
        checkpoint.load(path)
    path.parent.mkdir(parents=True)
    checkpoint.save(path, a_state(name))
    whole = path.read_bytes()
    flipped = [bytearray(whole) for _ in range(20)]
    for number, content in enumerate(flipped):
        content[number * (len(whole) - 1) // 19] ^= 1 << number % 8
    damaged = {
        "the file is empty": [b""],
        "the file is damaged": [
            whole[:500],
            whole[:-1],
            whole + b"\0",
            bytes(500),
            b"no checkpoint",
            b"\x80",
            *flipped,
        ],
    }
    for reason, contents in damaged.items():
        for content in contents:
            path.write_bytes(content)
            with pytest.raises(DataError, match=rf"{name}.pt: {reason}.*; {REMEDY[name]}") as caught:
                checkpoint.load(path)
            assert "\n" not in str(caught.value)
            assert "weights_only" not in str(caught.value)  # what torch advises instead
    checkpoint.save(path, {"something": "else"})
    with pytest.raises(DataError, match=rf"{name}.pt: the file holds something else \(no '.*' in it\); {REMEDY[name]}"):
        checkpoint.load(path)


def test_a_checkpoint_of_an_earlier_or_a_later_format(tmp_path, monkeypatch):
    for name in ("last", "model"):
        torch.save(a_state(name), tmp_path / f"{name}.pt")
    with pytest.raises(DataError, match=r"last.pt: it is of an earlier format.*finish the run with the pml-ext"):
        checkpoint.load(tmp_path / "last.pt")
    assert set(checkpoint.load(tmp_path / "model.pt")) == set(a_state("model"))  # what was trained can still be used
    monkeypatch.setattr("pml_ext.files.FORMAT", 3)
    checkpoint.save(tmp_path / "last.pt", a_state("last"))
    monkeypatch.undo()
    with pytest.raises(DataError, match=r"last.pt: it has format 3, of a later pml-ext; this one reads format 2; "):
        checkpoint.load(tmp_path / "last.pt")


def test_the_checkpoint_before_the_last_is_kept_and_used(tmp_path):
    last = tmp_path / "last.pt"
    assert checkpoint.load_to_resume(last) is None
    for epoch in (1, 2, 3):
        checkpoint.save_last(last, a_state("last") | {"epoch": epoch})
    state, word = checkpoint.load_to_resume(last)
    assert (state["epoch"], word) == (3, "")
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 1
    last.write_bytes(content)
    state, word = checkpoint.load_to_resume(last)
    assert state["epoch"] == 2
    assert word.startswith(
        f"{last}: the file is damaged (its checksum does not fit); the run goes on from the checkpoint"
    )
    last.unlink()
    assert checkpoint.load_to_resume(last)[0]["epoch"] == 2
    (tmp_path / "previous.pt").write_bytes(b"")
    last.write_bytes(content)
    with pytest.raises(DataError, match=r"last.pt: the file is damaged"):
        checkpoint.load_to_resume(last)


class Opens:
    """Opens a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("name", REMEDY)
def test_no_code_of_a_checkpoints_author_is_run(tmp_path, name):
    """With a right checksum too."""
    path, written = tmp_path / f"{name}.pt", tmp_path / "written"
    write_sealed(path, lambda place: torch.save(a_state(name) | {"epoch": Opens(written)}, place))
    with pytest.raises(DataError, match=rf"{name}.pt: the file is damaged \(UnpicklingError\)") as caught:
        checkpoint.load(path)
    assert "weights_only" not in str(caught.value)
    assert not written.exists()


def test_a_state_that_does_not_fit_is_refused_by_its_files_name(tmp_path):
    with pytest.raises(DataError, match=r"model.pt: it does not fit the run's recipe \(RuntimeError: .*; delete"):  # noqa: SIM117
        with checkpoint.taking(tmp_path / "model.pt"):
            torch.nn.Linear(2, 3).load_state_dict(torch.nn.Linear(3, 3).state_dict())


def test_a_state_of_other_versions_says_which_part_and_which_version(tmp_path):
    written = {"versions": checkpoint.versions() | {"torch": "1.13.0"}}
    with (
        pytest.raises(DataError) as caught,
        checkpoint.taking(tmp_path / "last.pt", written),
        checkpoint.part("the trunk"),
    ):
        torch.nn.Linear(2, 3).load_state_dict(torch.nn.Linear(3, 3).state_dict())
    text = str(caught.value)
    assert "last.pt: the trunk does not fit the run's recipe (RuntimeError: " in text
    assert "size mismatch for weight" in text
    assert f"(written by torch 1.13.0 (now {checkpoint.versions()['torch']})); delete the folder" in text
    assert "\n" not in text
    assert len(text) < 600 + len(str(tmp_path))


def test_disk_errors_have_the_path(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "last.pt").write_bytes(b"old")
    for function in ("pml_ext.experiment.checkpoint.torch.save", "pml_ext.files.os.fsync", "pml_ext.files.os.replace"):
        monkeypatch.setattr(function, full)
        with pytest.raises(
            UnwritableError, match=rf"^{tmp_path}/last.pt: cannot be written \(No space left on device\)"
        ):
            checkpoint.save(tmp_path / "last.pt", {"epoch": 1})
        monkeypatch.undo()
        assert [path.name for path in tmp_path.iterdir()] == ["last.pt"]
    assert (tmp_path / "last.pt").read_bytes() == b"old"
    with pytest.raises(UnwritableError, match=r"gone/checkpoints/last.pt: cannot be written .*; the folder .* is gone"):
        checkpoint.save(tmp_path / "gone" / "checkpoints" / "last.pt", {"epoch": 1})


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_file_that_was_moved_into_place_survives_a_power_loss(tmp_path, monkeypatch):
    """Its bytes are flushed before it is moved, and afterwards the folder that names it."""
    flushed, fsync = [], os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda handle: flushed.append(os.readlink(f"/proc/self/fd/{handle}")) or fsync(handle)
    )
    checkpoint.save(tmp_path / "last.pt", {"epoch": 1})
    assert flushed[-1] == str(tmp_path)
    assert len(flushed) > 1
