"""Learning rates: schedules, and the warm-up over schedules, stages and resumed runs."""

import math

import pytest
import torch
from torch import nn

from pml_ext_train.training.optimizers import extend_schedule

from .whole_runs import assert_the_same_when_resumed, built, finished
from .written_records import tables


def test_a_longer_cosine_keeps_its_factor():
    parameter = nn.Parameter(torch.zeros(()))
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
    own = [f"loss.optimizer.scheduled={scheduled}", "loss.optimizer.lr=0.5", "schedule.warmup=1.5"]
    found = rates_of(tmp_path, *SCHEDULES["cosine"], *own, recipe="pml/proxy-anchor/digits")
    wanted = expected("cosine", 1.5, lr=0.5) if scheduled == "true" else [0.5] * 30
    assert found["metric_loss_optimizer"] == pytest.approx(wanted, rel=1e-12)


@pytest.mark.usefixtures("without_report")
def test_a_step_takes_the_rate_that_is_recorded(tmp_path):
    few = [*RUN, "schedule.epochs=1", "sampler.iterations=2", "schedule.warmup=1", "optimizer.momentum=0"]
    few += [*SCHEDULES["constant"], "evaluation.baselines=false"]
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
    dropout = ["model.hidden_sizes=[16]", "model.dropout=0.5"]
    settings = [*SCHEDULES["cosine"], *dropout, "schedule.warmup=2.5", "optimizer.lr=0.02"]
    assert_the_same_when_resumed(tmp_path, *settings)
