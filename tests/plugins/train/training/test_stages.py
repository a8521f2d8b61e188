"""The stages of a training: samplers, iterations, optimizers and learning rates."""

import pytest
import torch

from pml_ext.errors import ConfigError
from pml_ext_train.networks.trunks import convnet, freeze
from pml_ext_train.training import checkpoint

from .whole_runs import finished
from .written_records import tables


@pytest.mark.usefixtures("without_report")
def test_a_stage_has_its_own_rate(tmp_path):
    """The first layers stay as they were; all others do in the first stage alone; then a tenth of the rate."""
    stage = 'stages=[{epochs=2, freeze="trunk", loss={name="cbml"}}, {epochs=1, lr_factor=0.1, loss={name="cbml"}}]'
    run = ["schedule.name=constant", "schedule.milestones=[]", "optimizer.name=sgd", "optimizer.lr=0.01"]
    state, _ = finished(tmp_path / "run", stage, 'model.freeze=["0", "1"]', *run)
    assert torch.equal(state["trunk"]["1.running_mean"], torch.zeros(8))  # in evaluation mode
    assert not torch.equal(state["trunk"]["5.running_mean"], torch.zeros(8))
    assert torch.equal(state["trunk"]["1.weight"], torch.ones(8))
    assert not torch.equal(state["trunk"]["5.weight"], torch.ones(8))
    last = checkpoint.load(tmp_path / "run" / "checkpoints" / "last.pt")
    assert last["parts"]["trunk_optimizer"]["param_groups"][0]["lr"] == pytest.approx(0.01)
    rows = tables(tmp_path / "run")["trunk_optimizer_SGD"]
    assert sorted({round(row["lr"], 6) for row in rows}) == [0.001, 0.01]
    with pytest.raises(ConfigError, match=r"model\.freeze: .*'layer1'"):
        freeze(convnet(3, 16), ["layer1"])
