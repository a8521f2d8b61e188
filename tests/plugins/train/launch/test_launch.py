"""Planned runs, their locks, and runs that are resumed."""

import subprocess
import sys

import pytest
import tomli_w
import torch

from pml_ext.errors import ConfigError, DataError
from pml_ext_train.launch.launch import draw_report, locked, train, train_and_validate
from pml_ext_train.launch.plan import plan
from pml_ext_train.recipe import load_recipe
from pml_ext_train.training import Silence, load

from ....overrides import typed
from ..training.made_up_photos import write_photos

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
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
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


SMALL = [
    "sampler.iterations=2",
    "model.trunk.width=4",
    "evaluation.baselines=false",
    "evaluation.figures=few",
    "schedule.milestones=[]",
    "schedule.name=constant",
    "evaluation.training_images=0",
]


@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_a_finished_run_continues_with_more_epochs(tmp_path, schedule):
    def metrics(out, epochs, resume=False):
        return train(
            "cbml/digits",
            tmp_path / out,
            device="cpu",
            overrides=typed([*SMALL, f"schedule.name={schedule}", f"schedule.epochs={epochs}"]),
            resume=resume,
        )[0]

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


@pytest.mark.usefixtures("without_report")
def test_a_run_refuses_changed_images(tmp_path):
    """Resumed runs do, also within an epoch, and reports of finished ones."""
    photos = tmp_path / "photos"
    out = tmp_path / "out"
    write_photos(photos, classes=6, each=6)

    def go_on(data, resume=True):
        settings = [
            *SMALL,
            f"data.name=folder:{data}",
            "data.split=class",
            "data.image_size=8",
            "data.channels=3",
            "sampler={name='shuffle', batch_size=4, iterations=2}",
            "schedule.epochs=1",
            "engine.checkpoint_minutes=1e-9",
        ]
        return train("pml/contrastive/digits", out, device="cpu", overrides=typed(settings), resume=resume)[0]

    first = go_on(photos, resume=False)
    (out / "report.html").write_text("")
    moved = photos / "class-00" / "0.png"
    moved.rename(photos / "class-00" / "nought.png")
    remedy = rf"{out}: the images have changed .*: .* has other files or labels.*Restore them.*--data.*--out"
    with pytest.raises(DataError, match=remedy):
        draw_report(out, "cpu")
    (out / "metrics.json").unlink()
    with pytest.raises(DataError, match=remedy):
        go_on(photos)
    (photos / "class-00" / "nought.png").rename(moved)
    assert go_on(photos)["after"] == first["after"]


# Trials of tuning


SETTINGS = [
    "data.name=digits-unseen",
    "sampler.batch_size=4",
    "sampler.m=2",
    "sampler.iterations=2",
    "schedule.epochs=3",
    "schedule.name=constant",
    "schedule.milestones=[]",
    "model.trunk.width=8",
    "evaluation.validation=0.4",
    "evaluation.select=map_at_r",
    "evaluation.select_on=validation",
    "evaluation.baselines=false",
]
NAME = "pml/contrastive/digits"


def trial(folder, report):
    return train_and_validate(load_recipe(NAME, typed(SETTINGS)), NAME, folder, 0, "cpu", None, Silence(), report)


def test_the_best_value_is_reported_and_returned(tmp_path):
    reported = []
    value = trial(tmp_path / "run", lambda epoch, best: reported.append((epoch, best)))
    epochs, values = zip(*reported, strict=True)
    assert epochs == (1, 2, 3)
    assert list(values) == sorted(values)  # the best until then
    assert value == values[-1]
    assert not (tmp_path / "run/metrics.json").exists()
    assert not (tmp_path / "run/report.html").exists()


def test_a_pruned_trial_can_be_resumed(tmp_path):
    whole = trial(tmp_path / "whole", lambda epoch, best: None)
    with pytest.raises(ZeroDivisionError):  # as what prunes a trial
        trial(tmp_path / "run", lambda epoch, best: 1 / 0)
    assert trial(tmp_path / "run", lambda epoch, best: None) == whole


# Plans


def test_resumed_seeds_keep_the_recipe_name(tmp_path):
    file = tmp_path / "run" / "seed-0" / "recipe.toml"
    file.parent.mkdir(parents=True)
    tables = load_recipe("cbml/digits", {"schedule.epochs": 16}).as_dict()
    file.write_text(tomli_w.dumps(tables | {"run": {"recipe": "cbml/digits", "seed": 0}}))
    plans = plan(str(file), tmp_path / "run", seeds=2, resume=True)
    assert [(each.name, each.seed, each.recipe.schedule.epochs) for each in plans] == [
        ("cbml/digits", 0, 16),
        ("cbml/digits", 1, 16),
    ]
    (other,) = plan(str(file), tmp_path / "other")
    assert other.name == str(file)
