"""A loss that is 0 in all iterations, and the pairs that batches lack."""

import pytest
import torch
from pytorch_metric_learning import losses

import pml_ext
from pml_ext.errors import NothingToLearnError, TrainingError
from pml_ext.relations import Hierarchy
from pml_ext_train.files import read_json
from pml_ext_train.training import checkpoint
from pml_ext_train.training.checks import missing_pairs

from .whole_runs import Ear, quick


@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (
            ["sampler.m=1", "sampler.batch_size=10"],
            "no batch has two images of one class, so there are no positive pairs",
        ),
        (["loss.name=pml/triplet-margin", "sampler.m=8", "sampler.batch_size=8"], "no batch has two classes"),
        (
            ['loss={name="pml/triplet-margin", margin=-9}'],
            "but none adds to the loss: all may satisfy its margin",
        ),
        (["loss.memory.size=500", "sampler.m=1", "sampler.batch_size=2", "sampler.iterations=1"], "positive pair"),
    ],
)
def test_a_loss_of_zero_is_a_warning(tmp_path, overrides, reason):
    settings = ["sampler.iterations=12", "schedule.epochs=2", "schedule.milestones=[1]", *overrides]
    ear = Ear()
    has_memory = "loss.memory.size=500" in overrides
    if has_memory:  # which is not full at the end
        assert quick(tmp_path / "run", *settings, listener=ear)["warnings"] == ear.warnings
        assert ear.warnings[0] in read_json(tmp_path / "run" / "metrics.json")["warnings"]
    else:
        text = r"the loss was 0 in all 12 iterations, so nothing is learned: .* \(until the end of epoch 1\); there"
        with pytest.raises(TrainingError, match=text) as caught:
            quick(tmp_path / "run", *settings, listener=ear)
        assert isinstance(caught.value, NothingToLearnError) == ("none adds to the loss" in reason)
        remedy = str(caught.value).partition("there is no checkpoint yet. ")[2]
        assert remedy.startswith(("Let the sampler draw several", "Take a larger margin"))
    (warning,) = ear.warnings
    first = 1 if has_memory else 10
    assert warning.startswith(f"the loss is 0 in all of the first {first} iterations, so nothing is learned: ")
    assert reason in warning


@pytest.mark.usefixtures("isolated_registry", "without_report")
def test_learned_runs_may_end_with_zero_loss(tmp_path):
    pml_ext.register(Vanishing, name="vanishing")
    metrics = quick(tmp_path / "run", "loss.name=vanishing", "evaluation.baselines=false")
    assert metrics["best_epoch"] == 3
    state = checkpoint.load(tmp_path / "run" / "checkpoints" / "last.pt")
    assert state["has_loss"] is True


@pytest.mark.usefixtures("without_report")
def test_trained_weights_may_have_zero_loss(tmp_path):
    quick(tmp_path / "first")
    settings = ['loss={name="pml/triplet-margin", margin=-9}', f"model.init={tmp_path / 'first'}"]
    ear = Ear()
    quick(tmp_path / "second", *settings, "sampler.iterations=10", listener=ear)
    assert ear.warnings[0].startswith("the loss is 0 in all of the first 10 iterations, so nothing is learned: ")


def test_what_pairs_no_batch_has():
    one = torch.tensor([0, 1, 2])
    both = torch.tensor([0, 0, 1])
    assert "no triplets" in missing_pairs([one, torch.tensor([3, 3])], None)
    assert missing_pairs([one, both], None) == ""
    relation = Hierarchy(["a/0", "a/1", "b/2"], level=1)
    assert missing_pairs([one], relation) == ""  # 0 and 1 have the same parent
    assert "no batch has two classes" in missing_pairs([both], relation)


class Vanishing(losses.ContrastiveLoss):
    """Is 0 after the first epoch, as if all pairs satisfied the margin."""

    def forward(self, *arguments):
        self.calls = getattr(self, "calls", 0) + 1
        return super().forward(*arguments) * int(self.calls < 5)
