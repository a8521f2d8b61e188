"""Locks of runs, and runs that are resumed."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext.errors import ConfigError, DataError
from pml_ext_train.launch.launch import draw_report, locked, train
from pml_ext_train.training.checkpoint import load

from ....overrides import typed

HOLDS = """
import os, pathlib, sys
from pml_ext_train.launch.launch import locked
with locked(pathlib.Path(sys.argv[1])):
    if os.fork() == 0:  # like a worker of a data loader, which may live longer
        sys.stdin.read()
        os._exit(0)
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_running_process_keeps_its_lock(tmp_path):
    command = [sys.executable, "-c", HOLDS, str(tmp_path)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    with (
        pytest.raises(ConfigError, match="is being written by another run; wait for it, or choose another --out"),
        locked(tmp_path),
    ):
        pass
    holder.kill()
    holder.wait()
    with locked(tmp_path):
        pass
    holder.communicate()


SMALL = ["sampler.iterations=2", "model.trunk.width=4", "evaluation.baselines=false", "evaluation.figures=few"]
SMALL += ["schedule.milestones=[]", "schedule.name=constant", "evaluation.training_images=0"]


@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_a_finished_run_continues_with_more_epochs(tmp_path, schedule):
    def metrics(out, epochs, resume=False):
        settings = [*SMALL, f"schedule.name={schedule}", f"schedule.epochs={epochs}"]
        return train("cbml/digits", tmp_path / out, device="cpu", overrides=typed(settings), resume=resume)[0]

    first = metrics("longer", 1)
    straight = metrics("straight", 2)
    longer = metrics("longer", 2, resume=True)
    assert longer["best_epoch"] == 2
    if schedule == "constant":
        assert longer["after"] == straight["after"] != first["after"]
    else:  # its first steps had other rates
        schedules = [load(tmp_path / out / "checkpoints/last.pt")["parts"] for out in ("longer", "straight")]
        rates = [parts["trunk_optimizer"]["param_groups"][0]["lr"] for parts in schedules]
        assert rates[0] == pytest.approx(rates[1])
    assert metrics("longer", 2, resume=True)["after"] == longer["after"]
    with pytest.raises(ConfigError, match="schedule.epochs is 2 in the run to resume, but 1 now"):
        metrics("longer", 1, resume=True)


@pytest.mark.usefixtures("without_report")
def test_a_run_starts_from_other_weights(tmp_path):
    for name, more in (("a", []), ("b", [f"model.init={tmp_path / 'a'}", "optimizer.lr=1e-12"])):
        train("cbml/digits", tmp_path / name, device="cpu", overrides=typed([*SMALL, "schedule.epochs=1", *more]))
    weights = [load(tmp_path / name / "checkpoints/model.pt") for name in "ab"]
    for network in ("trunk", "embedder"):
        for name, tensor in weights[0][network].items():
            if "running" not in name and "num_batches" not in name:
                torch.testing.assert_close(weights[1][network][name], tensor)


def write_class(place, name):
    (place / name).mkdir(parents=True)
    for image in range(6):
        pixels = np.full((8, 8, 3), 20 * image, dtype=np.uint8)
        Image.fromarray(pixels).save(place / name / f"{image}.png")


@pytest.mark.usefixtures("without_report")
def test_a_run_refuses_changed_images(tmp_path):
    """Resumed runs do, also within an epoch, and reports of finished ones."""
    photos = tmp_path / "photos"
    out = tmp_path / "out"
    for number in range(6):
        write_class(photos, f"c{number}")

    def go_on(data, resume=True):
        settings = [*SMALL, f"data.name=folder:{data}", "data.split=class", "data.image_size=8", "data.channels=3"]
        settings += ["sampler={name='shuffle', batch_size=4, iterations=2}", "schedule.epochs=1"]
        settings += ["engine.checkpoint_minutes=1e-9"]
        return train("pml/contrastive/digits", out, device="cpu", overrides=typed(settings), resume=resume)[0]

    first = go_on(photos, resume=False)
    (out / "report.html").write_text("")
    moved = photos / "c0" / "0.png"
    moved.rename(photos / "c0" / "nought.png")
    remedy = rf"{out}: the images have changed .*: .* has other files or labels.*Restore them.*--data.*--out"
    with pytest.raises(DataError, match=remedy):
        draw_report(out, "cpu")
    (out / "metrics.json").unlink()
    with pytest.raises(DataError, match=remedy):
        go_on(photos)
    (photos / "c0" / "nought.png").rename(moved)
    assert go_on(photos)["after"] == first["after"]
