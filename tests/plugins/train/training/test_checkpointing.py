"""When a run writes its checkpoints, and how it goes on from them."""

import re
import shutil

import pytest

from pml_ext_train.training import checkpoint

from ...search.conftest import flip, halve
from .whole_runs import Ear, quick, same


@pytest.mark.usefixtures("without_report")
def test_a_damaged_last_checkpoint_costs_an_epoch(finished, tmp_path):
    out = shutil.copytree(finished[0], tmp_path / "out")
    ear = Ear()
    (out / "metrics.json").unlink()
    for name, place in (("checkpoints/last.pt", 5000), ("recipe.toml", 300)):
        flip(out / name, place)
    assert same(quick(out, resume=True, listener=ear), finished[1])
    damaged = r"last\.pt: the file is damaged \(its checksum differs from SHA256SUMS\); the run resumes from"
    assert re.search(rf"{damaged}.*previous\.pt \(epoch 2\)", ear.warnings[0])
    assert (out / "recipe.toml").read_bytes() == (finished[0] / "recipe.toml").read_bytes()


@pytest.mark.parametrize(
    ("damage", "has_sums", "kept"), [(flip, True, 1), (halve, False, 1), (None, True, 2), (None, False, 2)]
)
def test_only_intact_checkpoints_become_the_previous_one(tmp_path, damage, has_sums, kept):
    (tmp_path / "checkpoints").mkdir()
    last = tmp_path / "checkpoints" / "last.pt"
    for epoch in (1, 2):
        checkpoint.save_last(last, {"epoch": epoch})
    if not has_sums:
        (tmp_path / "SHA256SUMS").unlink()
    if damage is not None:
        damage(last)
    checkpoint.save_last(last, {"epoch": 3})
    assert checkpoint.load(last.with_name("previous.pt"))["epoch"] == kept
    checkpoint.save_last(last, {"epoch": 4})
    assert checkpoint.load(last.with_name("previous.pt"))["epoch"] == 3
