"""What a run is warned of: small batches, collapse, a loss of 0; and how warnings reach its listener."""

import logging
import warnings

import pytest
import torch
from pytorch_metric_learning import losses

from pml_ext.errors import NothingToLearnError, TrainingError, TrainingWarning
from pml_ext.pairwise import ListedTuples
from pml_ext.relations import Hierarchy
from pml_ext_train.files import read_json
from pml_ext_train.networks.trunks import convnet
from pml_ext_train.training import checkpoint
from pml_ext_train.training.checks import collapse, missing_pairs, warn_of_small_batches
from pml_ext_train.training.listener import forward_notes, forward_warnings

from .whole_runs import Ear, built, quick


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
        (['stages=[{epochs=2, loss={name="cbml"}, freeze="trunk"}]'], 40),  # the stage after it trains all
        (["model.trunk.weights=random"], None),
        (['paper={table="a paper, Table 1"}'], None),
    ],
)
def test_small_batches_of_pretrained_norms_are_told(tmp_path, settings, images):
    weights = tmp_path / "weights.pth"
    torch.save(convnet(1, 8, blocks=2, width=8).state_dict(), weights)
    given = (
        f'model.trunk={{name="convnet", blocks=2, width=8, weights="{weights}"}}',
        "sampler.batch_size=40",
        "schedule.epochs=10",
        *settings,
    )
    run = built(tmp_path, *given, recipe="pml/multi-similarity/digits", device="cpu")
    warn_of_small_batches(run)
    found = [text for text in run.history.warnings if "batch norms of the pretrained trunk" in text]
    assert len(found) == (images is not None)
    for text in found:
        assert f"see {images} images at once" in text
        assert text.endswith("--set model.freeze_batch_norm=true")


# Collapse


@pytest.mark.nightly
def test_a_collapsed_run_still_writes_a_report(tmp_path):
    ear = Ear()
    metrics = quick(tmp_path / "out", "optimizer.lr=1e8", listener=ear)
    assert sum("embeddings collapse to one point" in text for text in ear.warnings) == 1, ear.warnings  # not each epoch
    assert metrics["warnings"] == ear.warnings
    assert metrics["after"]["nmi"] < 0.01
    report = (tmp_path / "out" / "report.html").read_text()
    assert "collapse" in report
    assert "could not be drawn" not in report
    assert [epoch[:2] for epoch in ear.epochs] == [("1", "3"), ("2", "3"), ("3", "3")]
    assert ear.epochs[-1][-1] == "0:00:00"


LABELS = torch.arange(60) % 6


def in_a_cone(spread: float, noise: float = 0.0) -> torch.Tensor:
    """One direction, plus one of each class, plus noise: the mean cosine similarity is near 1 for a small spread."""
    generator = torch.Generator().manual_seed(0)
    return (spread * torch.eye(16)[LABELS] + noise * torch.randn(60, 16, generator=generator)) + torch.ones(16)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_similar_directions_are_no_collapse(scale):
    points = in_a_cone(0.1, 0.001)
    directions = torch.nn.functional.normalize(points)
    assert (directions @ directions.T).mean() > 0.99
    assert collapse(scale * points, LABELS) is None
    assert collapse(scale * points, LABELS.numpy()) is None


@pytest.mark.parametrize("points", [in_a_cone(0.0), in_a_cone(0.0, 0.01), in_a_cone(1e-5), in_a_cone(1e-6, 1e-8)])
def test_indistinguishable_classes_are_a_collapse(points):
    similarity = collapse(points, LABELS)
    assert similarity is not None
    directions = torch.nn.functional.normalize(points.double())
    assert similarity == pytest.approx(float((directions @ directions.T)[~torch.eye(60, dtype=torch.bool)].mean()))


def test_what_cannot_be_judged_is_no_collapse():
    assert collapse(torch.randn(60, 16), LABELS) is None
    assert collapse(torch.ones(1, 4), LABELS[:1]) is None
    assert collapse(torch.full((6, 4), float("nan")), LABELS[:6]) is None
    assert collapse(torch.ones(6, 4), torch.arange(6)) is not None


def test_indistinguishable_listed_tuples_are_a_collapse():
    ordered = torch.tensor([[1.0, 0.0], [1.0, 1e-3], [1.0, 9e-3], [1.0, 10e-3]])
    pairs = ListedTuples([[0, 1], [2, 3], [0, 3], [1, 2]], [True, True, False, False])
    triplets = ListedTuples([[0, 1, 2], [3, 2, 0]])
    for tuples in (pairs, triplets):
        assert collapse(ordered, tuples) is None
        assert collapse(torch.ones(4, 2), tuples) == pytest.approx(1)
        assert collapse(torch.eye(4), tuples) is None  # far from each other
    assert collapse(ordered, ListedTuples(pairs.rows, ~pairs.same)) > 0.99
    assert collapse(torch.ones(4, 2), pairs.some([0])) == pytest.approx(1)  # no order of one kind
    assert collapse(torch.ones(1, 2), triplets.some([])) is None


# A loss of 0


@pytest.mark.slow
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
        with pytest.raises(
            TrainingError,
            match=r"the loss was 0 in all 12 iterations, so nothing is learned: .* \(until the end of epoch 1\); there",
        ) as caught:
            quick(tmp_path / "run", *settings, listener=ear)
        assert isinstance(caught.value, NothingToLearnError) == ("none adds to the loss" in reason)
        assert (
            str(caught.value)
            .partition("there is no checkpoint yet. ")[2]
            .startswith(("Let the sampler draw several", "Take a larger margin"))
        )
    (warning,) = ear.warnings
    first = 1 if has_memory else 10
    assert warning.startswith(f"the loss is 0 in all of the first {first} iterations, so nothing is learned: ")
    assert reason in warning


@pytest.mark.slow
@pytest.mark.usefixtures("without_report")
def test_learned_runs_may_end_with_zero_loss(tmp_path, isolated_registry):
    isolated_registry.register(Vanishing, name="vanishing")
    assert quick(tmp_path / "run", "loss.name=vanishing", "evaluation.baselines=false")["best_epoch"] == 3
    assert checkpoint.load(tmp_path / "run" / "checkpoints" / "last.pt")["has_loss"] is True


@pytest.mark.slow
@pytest.mark.usefixtures("without_report")
def test_trained_weights_may_have_zero_loss(tmp_path):
    quick(tmp_path / "first")
    ear = Ear()
    quick(
        tmp_path / "second",
        'loss={name="pml/triplet-margin", margin=-9}',
        f"model.init={tmp_path / 'first'}",
        "sampler.iterations=10",
        listener=ear,
    )
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


# Listeners


def test_warnings_of_training_are_passed_on_each_time():
    heard = []
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        with forward_warnings(heard.append):
            for _ in range(2):  # from one line
                warnings.warn("the loss says so", TrainingWarning, stacklevel=1)
            warnings.warn("of others", UserWarning, stacklevel=1)
        warnings.warn("afterwards", TrainingWarning, stacklevel=1)
    assert heard == ["the loss says so"] * 2
    assert [str(each.message) for each in shown] == ["of others", "afterwards"]


def test_notes_of_components_are_passed_on():
    heard = []
    logger = logging.getLogger("pml_ext")
    with forward_notes(heard.append):
        logger.info("the loss uses %s", "both widths")
        logger.debug("details")
    logger.info("afterwards")
    assert heard == ["the loss uses both widths"]
    assert not logger.handlers
