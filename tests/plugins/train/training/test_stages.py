"""The stages of a training: samplers, optimizers, learning rates and their warm-up."""

import math

import pytest
import torch
from torch.utils.data import SequentialSampler

from pml_ext.errors import ConfigError, RecipeWarning
from pml_ext_train.networks.trunks import convnet, freeze
from pml_ext_train.recipe import DataTable, build_dataset, load_recipes
from pml_ext_train.training import checkpoint
from pml_ext_train.training.optimizers import extend_schedule
from pml_ext_train.training.stages import build_stages

from ....overrides import typed
from .whole_runs import assert_the_same_when_resumed, built, finished
from .written_records import tables


@pytest.mark.usefixtures("without_report")
def test_a_stage_has_its_own_rate(tmp_path):
    """The first layers stay as they were; all others do in the first stage alone; then a tenth of the rate."""
    state, _ = finished(
        tmp_path / "run",
        'stages=[{epochs=2, freeze="trunk", loss={name="cbml"}}, {epochs=1, lr_factor=0.1, loss={name="cbml"}}]',
        'model.freeze=["0", "1"]',
        "schedule.name=constant",
        "schedule.milestones=[]",
        "optimizer.name=sgd",
        "optimizer.lr=0.01",
    )
    assert torch.equal(state["trunk"]["1.running_mean"], torch.zeros(8))  # in evaluation mode
    assert not torch.equal(state["trunk"]["5.running_mean"], torch.zeros(8))
    assert torch.equal(state["trunk"]["1.weight"], torch.ones(8))
    assert not torch.equal(state["trunk"]["5.weight"], torch.ones(8))
    last = checkpoint.load(tmp_path / "run" / "checkpoints" / "last.pt")
    assert last["parts"]["trunk_optimizer"]["param_groups"][0]["lr"] == pytest.approx(0.01)
    assert sorted({round(row["lr"], 6) for row in tables(tmp_path / "run")["trunk_optimizer_SGD"]}) == [0.001, 0.01]
    with pytest.raises(ConfigError, match=r"model\.freeze: .*'layer1'"):
        freeze(convnet(3, 16), ["layer1"])


# Samplers


class Short(SequentialSampler):
    """A pass of 64 images, whatever is asked for."""

    def __init__(self):
        super().__init__(range(64))


@pytest.mark.parametrize(
    ("sampler", "text"),
    [
        ("name='short', batch_size=16, iterations=5", "iterations = 5, but a pass of short gives 4 batches of 16"),
        ("name='shuffle', batch_size=5000, iterations=1", r"1 batches of 5000 need more than the \d+ training images"),
    ],
)
def test_batches_that_the_data_cannot_give_are_refused(isolated_registry, sampler, text):
    images = build_dataset(DataTable(name="digits"), None).train
    isolated_registry.register(Short, name="short")
    (recipe,) = load_recipes("cbml/digits", typed([f"sampler={{{sampler}}}"])).values()
    with pytest.raises(ConfigError, match=f"sampler: {text}; make .* smaller"):
        build_stages(recipe, images, torch.device("cpu"), 0)


def test_too_few_classes_make_a_smaller_batch():
    """Ten digits x 4 images, not the 64 of the recipe."""
    images = build_dataset(DataTable(name="digits"), None).train
    (recipe,) = load_recipes("cbml/digits", typed(["sampler.m=4", "sampler.batch_size=64"])).values()
    with pytest.warns(RecipeWarning, match="sampler.batch_size: 10 classes x m = 4 make batches of 40 instead of 64"):
        (stage,) = build_stages(recipe, images, torch.device("cpu"), 0)
    assert stage.batch_size == stage.table.sampler.batch_size == 40
    assert len({*images.labels[list(stage.sampler)[:40]].tolist()}) == 10


# Learning rates


def test_a_longer_cosine_keeps_its_factor():
    parameter = torch.nn.Parameter(torch.zeros(()))
    rates = []
    for epochs in (4, 8):
        optimizer = torch.optim.SGD([parameter], lr=1.0)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
        optimizer.param_groups[0]["lr"] *= 0.1
        for _ in range(3):
            optimizer.step()
            schedule.step()
        if epochs == 4:
            extend_schedule(schedule, 8, 0.1)
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates[0] == pytest.approx(rates[1])


RUN = ["schedule.epochs=6", "sampler.iterations=5", "optimizer.name=sgd", "optimizer.lr=0.02", "model.trunk.width=8"]
SCHEDULES = {
    "constant": ["schedule.name=constant", "schedule.milestones=[]"],
    "multi-step": ["schedule.milestones=[1, 4]", "schedule.gamma=0.5"],
    "cosine": ["schedule.name=cosine", "schedule.milestones=[]"],
}


def rates_of(folder, *overrides, recipe="cbml/digits"):
    """The learning rate of each iteration by the name of its optimizer, without a step of training."""
    run = built(folder, *RUN, *overrides, recipe=recipe)
    rates = {}
    for epoch in range(1, 7):
        run.epoch = epoch
        stage = run.stages.of(epoch)
        run.enter_stage(stage)
        objective, _ = run.objective(stage, recorded=False)
        for _ in range(stage.iterations):
            with objective.warm_up():
                for name, optimizer in objective.optimizers.items():
                    rates.setdefault(name, []).append(optimizer.param_groups[0]["lr"])
        for schedule in objective.schedulers:
            schedule.optimizer.step()
            schedule.step()
    return rates


def expected(name, warmup, factor=1.0, iterations=(5,) * 6, lr=0.02):
    """The rates by hand: the epoch's by the schedule, times the share of the warm-up that an iteration ends."""
    rates = []
    for number, count in enumerate(iterations):
        scheduled = {
            "constant": lr,
            "multi-step": lr * 0.5 ** sum(number >= milestone for milestone in (1, 4)),
            "cosine": lr * (1 + math.cos(math.pi * number / 6)) / 2,
        }[name]
        for step in range(1, count + 1):
            passed = number + step / count
            rates.append(factor * scheduled * (passed / warmup if warmup and passed < warmup else 1))
    return rates


@pytest.mark.parametrize("warmup", [0, 0.5, 1, 2.3])
@pytest.mark.parametrize("name", SCHEDULES)
def test_warm_up_multiplies_each_schedule(tmp_path, name, warmup):
    found = rates_of(tmp_path, *SCHEDULES[name], f"schedule.warmup={warmup}", "optimizer.head_lr_factor=3")
    assert found["trunk_optimizer"] == pytest.approx(expected(name, warmup), rel=1e-12)
    assert found["embedder_optimizer"] == pytest.approx(expected(name, warmup, factor=3), rel=1e-12)


def test_it_goes_on_through_stages(tmp_path):
    stage = '{epochs=2, lr_factor=0.1, loss={name="cbml"}, sampler={name="shuffle", batch_size=40, iterations=3}}'
    found = rates_of(tmp_path, *SCHEDULES["cosine"], "schedule.warmup=2.5", f"stages=[{stage}]")
    wanted = expected("cosine", 2.5, iterations=(3, 3, 5, 5, 5, 5))
    wanted[:6] = [0.1 * rate for rate in wanted[:6]]
    assert found["trunk_optimizer"] == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("scheduled", ["true", "false"])
def test_scheduled_loss_parameters_warm_up(tmp_path, scheduled):
    found = rates_of(
        tmp_path,
        *SCHEDULES["cosine"],
        f"loss.optimizer.scheduled={scheduled}",
        "loss.optimizer.lr=0.5",
        "schedule.warmup=1.5",
        recipe="pml/proxy-anchor/digits",
    )
    assert found["metric_loss_optimizer"] == pytest.approx(
        expected("cosine", 1.5, lr=0.5) if scheduled == "true" else [0.5] * 30, rel=1e-12
    )


@pytest.mark.usefixtures("without_report")
def test_a_step_takes_the_rate_that_is_recorded(tmp_path):
    few = [
        *RUN,
        "schedule.epochs=1",
        "sampler.iterations=2",
        "schedule.warmup=1",
        "optimizer.momentum=0",
        *SCHEDULES["constant"],
        "evaluation.baselines=false",
    ]
    finished(tmp_path / "run", *few)
    assert [row["lr"] for row in tables(tmp_path / "run")["trunk_optimizer_SGD"]] == [0.01, 0.02]
    few += ["sampler.iterations=1", "optimizer.lr=0.01"]
    plain, _ = finished(tmp_path / "plain", *few, "schedule.warmup=0")
    whole, _ = finished(tmp_path / "whole", *few)  # its only step ends the warm-up
    double, _ = finished(tmp_path / "double", *few, "schedule.warmup=0", "optimizer.lr=0.02")
    torch.testing.assert_close(dict(whole["trunk"]), dict(plain["trunk"]), rtol=0, atol=0)
    assert not torch.equal(double["trunk"]["0.weight"], whole["trunk"]["0.weight"])


@pytest.mark.usefixtures("without_report")
def test_runs_resume_inside_their_warm_up(tmp_path):
    """Dropout draws from torch's generator in each step."""
    assert_the_same_when_resumed(
        tmp_path,
        *SCHEDULES["cosine"],
        "model.hidden_sizes=[16]",
        "model.dropout=0.5",
        "schedule.warmup=2.5",
        "optimizer.lr=0.02",
    )
