"""What ends a run or is worth a warning: values that are not finite, a loss of 0, collapse."""

import math

import pytest
from pytorch_metric_learning import losses

import pml_ext
from pml_ext.errors import TrainingError
from pml_ext_train.training import checkpoint

from .whole_runs import quick


class Exploding(losses.ContrastiveLoss):
    """Becomes NaN in its sixth call, or a batch norm's statistics do."""

    what = "loss"

    def start_epoch(self, run):
        if self.what == "statistics" and run.epoch == 2:
            run.trunk[1].running_mean.fill_(math.inf)

    def forward(self, *arguments):
        self.calls = getattr(self, "calls", 0) + 1
        return super().forward(*arguments) * (math.nan if self.calls == 6 and self.what == "loss" else 1)


@pytest.mark.usefixtures("isolated_registry")
@pytest.mark.parametrize(
    ("what", "wanted"),
    [
        ("loss", r"the loss became nan in iteration 6 \(epoch 2\)"),
        ("statistics", r"the trunk\.1\.running_mean became inf in epoch 2"),
    ],
)
def test_nan_stops_the_run_and_keeps_the_checkpoint(tmp_path, monkeypatch, what, wanted):
    monkeypatch.setattr(Exploding, "what", what)
    pml_ext.register(Exploding, name="exploding")
    with pytest.raises(TrainingError, match=f"{wanted}; the checkpoint of epoch 1 is kept"):
        quick(tmp_path / "out", "loss.name=exploding", "evaluation.baselines=false")
    state = checkpoint.load(tmp_path / "out" / "checkpoints" / "last.pt")
    assert state["epoch"] == 1
    assert all(value.isfinite().all() for value in state["parts"]["embedder"].values())


def test_weights_that_are_not_finite_are_no_checkpoint(tmp_path):
    overrides = ("optimizer={name='sgd', lr=3e38, weight_decay=1e3}", "sampler.iterations=1")
    with pytest.raises(TrainingError, match=r"the weight trunk\.0\.weight became inf in epoch 1; there is no"):
        quick(tmp_path / "out", *overrides, recipe="triplets/digits")
    assert [path.name for path in (tmp_path / "out" / "checkpoints").iterdir()] == ["before.pt"]
