"""The schedules of learning rates."""

import pytest
import torch
from torch import nn

from pml_ext_train.training.optimizers import extend_schedule


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
