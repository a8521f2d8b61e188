"""When a run writes its checkpoints, and how it goes on from them."""

import re
import shutil

import pytest
import torch

from pml_ext.errors import DataError
from pml_ext.files import checksums
from pml_ext.training import checkpoint

from .whole_runs import Ear, quick, same


@pytest.mark.usefixtures("without_report")
def test_a_model_that_is_gone_is_made_again(finished, tmp_path):
    out = shutil.copytree(finished[0], tmp_path / "out")
    ear = Ear()
    model = out / "checkpoints" / "model.pt"
    model.unlink()
    again = quick(out, resume=True, listener=ear)
    assert same(again, finished[1])
    assert ear.warnings == [f"{model} is gone or damaged; it is made again from {model.with_name('last.pt')}"]
    states = [torch.load(run / "checkpoints" / "model.pt")["trunk"] for run in (out, finished[0])]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[1])
    for name in ("model.pt", "last.pt"):
        model.with_name(name).unlink()
    with pytest.raises(DataError, match=r"model.pt is gone or damaged, and .*last.pt.*; delete .*metrics.json"):
        quick(out, resume=True)


@pytest.mark.usefixtures("without_report")
def test_a_damaged_last_checkpoint_costs_an_epoch(finished, tmp_path):
    out = shutil.copytree(finished[0], tmp_path / "out")
    ear = Ear()
    (out / "metrics.json").unlink()
    for name, place in (("checkpoints/last.pt", 5000), ("recipe.toml", 300)):
        content = bytearray((out / name).read_bytes())
        content[place] ^= 1
        (out / name).write_bytes(content)
    assert same(quick(out, resume=True, listener=ear), finished[1])
    damaged = r"last\.pt: the file is damaged \(its checksum is not that in SHA256SUMS\); the run goes on from"
    assert re.search(rf"{damaged}.*previous\.pt \(epoch 2\)", ear.warnings[0])
    assert (out / "recipe.toml").read_bytes() == (finished[0] / "recipe.toml").read_bytes()


def test_a_damaged_checkpoint_does_not_replace_the_one_before_it(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    last = tmp_path / "checkpoints" / "last.pt"
    for epoch in (1, 2):
        checkpoint.save_last(last, {"epoch": epoch})
    previous = last.with_name("previous.pt")
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 1
    last.write_bytes(content)
    checkpoint.save_last(last, {"epoch": 3})
    assert checkpoint.load(previous)["epoch"] == 1
    checkpoint.save_last(last, {"epoch": 4})
    assert checkpoint.load(previous)["epoch"] == 3


@pytest.mark.parametrize("damaged", [False, True])
def test_a_checkpoint_without_its_checksum_is_kept_if_intact(tmp_path, damaged):
    (tmp_path / "checkpoints").mkdir()
    last = tmp_path / "checkpoints" / "last.pt"
    for epoch in (1, 2):
        checkpoint.save_last(last, {"epoch": epoch})
    (tmp_path / "SHA256SUMS").unlink()
    if damaged:
        last.write_bytes(last.read_bytes()[:500])
    checkpoint.save_last(last, {"epoch": 3})
    assert checkpoint.load(last.with_name("previous.pt"))["epoch"] == (1 if damaged else 2)


def test_each_checkpoint_is_hashed_once(tmp_path, monkeypatch):
    (tmp_path / "checkpoints").mkdir()
    last = tmp_path / "checkpoints" / "last.pt"
    checkpoint.save_last(last, {"epoch": 1})
    hashed = []
    sha256_of = checksums.sha256_of

    def counted(path):
        hashed.append(path.name)
        return sha256_of(path)

    monkeypatch.setattr(checksums, "sha256_of", counted)
    monkeypatch.setattr(checkpoint, "sha256_of", counted)
    checkpoint.save_last(last, {"epoch": 2})
    assert len(hashed) == 2  # the copy, and the new one
