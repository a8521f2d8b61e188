"""What ends a run or is worth a warning: values that are not finite, a loss of 0, collapse."""

import math

import pytest
import torch
from pytorch_metric_learning import losses

import pml_ext
from pml_ext.errors import TrainingError
from pml_ext.networks.trunks import convnet
from pml_ext.recipe import load_recipe
from pml_ext.training import checkpoint
from pml_ext.training.outcome import warn_of_small_batches
from pml_ext.training.run import Run

from ..overrides import typed
from .whole_runs import quick

STAGE = 'stages=[{epochs=2, loss={name="cbml"}, freeze="trunk"}]'


@pytest.mark.parametrize(
    ("settings", "images"),
    [
        ([], 40),
        (["sampler.m=16", "sampler.batch_size=144"], None),
        (["sampler.m=16", "sampler.batch_size=144", "engine.micro_batch=32"], 32),
        (["model.freeze_batch_norm=true"], None),
        (["model.freeze=trunk"], None),
        (['model.freeze=["*"]'], None),
        (['model.freeze=["1", "5"]'], None),  # the batch norms
        (['model.freeze=["0"]'], 40),
        (['model.freeze={until="4"}'], 40),
        (['model.freeze={until="6"}'], None),  # after the last batch norm
        ([STAGE], 40),  # the stage after it trains all
        (["model.trunk.weights=random"], None),
        (['paper={table="a paper, Table 1"}'], None),
    ],
)
def test_small_batches_of_pretrained_norms_are_told(tmp_path, settings, images):
    weights = tmp_path / "weights.pth"
    torch.save(convnet(1, 8, blocks=2, width=8).state_dict(), weights)
    trunk = f'model.trunk={{name="convnet", blocks=2, width=8, weights="{weights}"}}'
    recipe = load_recipe("pml/multi-similarity/digits", typed([trunk, "sampler.batch_size=40", *settings]))
    run = Run(recipe, "digits", tmp_path, device="cpu")
    warn_of_small_batches(run)
    found = [text for text in run.history.warnings if "the batch norms of the pretrained trunk" in text]
    if images is None:
        assert found == []
    else:
        assert f"normalize by {images} images" in found[0]
        assert found[0].endswith("--set model.freeze_batch_norm=true")


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
