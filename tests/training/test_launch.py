"""The lock of a run's folder."""

import subprocess
import sys

import pytest
import torch

from pml_ext.errors import ConfigError
from pml_ext.training.checkpoint import load
from pml_ext.training.launch import locked, train

HOLDS = """
import os, pathlib, sys
from pml_ext.training.launch import locked
with locked(pathlib.Path(sys.argv[1])):
    if os.fork() == 0:  # as a data loader's worker, which may live a little longer
        sys.stdin.read()
        os._exit(0)
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_living_holder_keeps_others_out_and_a_killed_one_nobody(tmp_path):
    command = [sys.executable, "-c", HOLDS, str(tmp_path)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(ConfigError, match="is being written by another run; wait for it or stop"), locked(tmp_path):
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
def test_a_finished_run_goes_on_with_more_epochs(tmp_path, schedule):
    def metrics(out, epochs, resume=False):
        settings = [*SMALL, f"schedule.name={schedule}", f"schedule.epochs={epochs}"]
        return train("cbml/digits", tmp_path / out, device="cpu", overrides=settings, resume=resume)[0]

    first, straight = metrics("longer", 1), metrics("straight", 2)
    longer = metrics("longer", 2, resume=True)
    assert longer["best_epoch"] == 2
    if schedule == "constant":
        assert longer["after"] == straight["after"] != first["after"]
    else:  # which has taken its first steps at other rates
        schedules = [load(tmp_path / out / "checkpoints/last.pt")["parts"] for out in ("longer", "straight")]
        rates = [parts["trunk_optimizer"]["param_groups"][0]["lr"] for parts in schedules]
        assert rates[0] == pytest.approx(rates[1])
    assert metrics("longer", 2, resume=True)["after"] == longer["after"]
    with pytest.raises(ConfigError, match="schedule.epochs is 2 in the run to resume, but 1 now"):
        metrics("longer", 1, resume=True)


@pytest.mark.usefixtures("without_report")
def test_a_run_starts_from_the_weights_of_another(tmp_path):
    for name, more in (("a", []), ("b", [f"model.init={tmp_path / 'a'}", "optimizer.lr=1e-12"])):
        train("cbml/digits", tmp_path / name, device="cpu", overrides=[*SMALL, "schedule.epochs=1", *more])
    weights = [load(tmp_path / name / "checkpoints/model.pt") for name in "ab"]
    for network in ("trunk", "embedder"):
        for name, tensor in weights[0][network].items():
            if "running" not in name and "num_batches" not in name:
                torch.testing.assert_close(weights[1][network][name], tensor)
    for width, place, message in ((4, tmp_path, "is no finished run"), (8, tmp_path / "a", "trunk of .* is another")):
        settings = [*SMALL, "schedule.epochs=1", f"model.trunk.width={width}", f"model.init={place}"]
        with pytest.raises(ConfigError, match=message):
            train("cbml/digits", tmp_path / f"c{width}", device="cpu", overrides=settings)
