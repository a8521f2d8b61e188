"""When a run writes its checkpoints, and how it goes on from them."""

import re
import shutil

import pytest

from pml_ext_train.training import checkpoint

from .whole_runs import Ear, quick, same


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
    damaged = r"last\.pt: the file is damaged \(its checksum differs from SHA256SUMS\); the run resumes from"
    assert re.search(rf"{damaged}.*previous\.pt \(epoch 2\)", ear.warnings[0])
    assert (out / "recipe.toml").read_bytes() == (finished[0] / "recipe.toml").read_bytes()


def test_damaged_checkpoints_replace_no_good_ones(tmp_path):
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
def test_intact_checkpoints_without_checksums_are_kept(tmp_path, damaged):
    (tmp_path / "checkpoints").mkdir()
    last = tmp_path / "checkpoints" / "last.pt"
    for epoch in (1, 2):
        checkpoint.save_last(last, {"epoch": epoch})
    (tmp_path / "SHA256SUMS").unlink()
    if damaged:
        last.write_bytes(last.read_bytes()[:500])
    checkpoint.save_last(last, {"epoch": 3})
    assert checkpoint.load(last.with_name("previous.pt"))["epoch"] == (1 if damaged else 2)
