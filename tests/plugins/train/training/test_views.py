"""Several views of an image in a batch, with labels and without: seeds, kept features, components, resumed runs."""

import numpy as np
import pytest
import torch
from pytorch_metric_learning.losses import ContrastiveLoss, NTXentLoss

import pml_ext
from pml_ext import registry
from pml_ext_train.data import LabeledImages, build_transforms, prepare
from pml_ext_train.training.batches import BatchReader, epoch_batches
from pml_ext_train.training.checks import _normalized_together

from .made_up_photos import write_photos
from .whole_runs import assert_close_networks, assert_the_same_when_resumed, built, finished, garbled_labels

CPU = torch.device("cpu")
UNLABELED = ["data.labels=instance", "data.views=2", "sampler={name='shuffle', batch_size=40}", "sampler.iterations=4"]
UNLABELED += ["loss={name='pml/ntxent', temperature=0.1}", "evaluation.baselines=false"]
TWO_EPOCHS = ["schedule.epochs=2", "schedule.milestones=[1]"]
pytestmark = pytest.mark.usefixtures("without_report")


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_views_follow_each_other_with_seeds_that_do(processes):
    drawn = [[3, 1, 4], [1, 5]]
    whole = epoch_batches(drawn, 7, 2, views=3)
    assert [[index for index, _ in batch] for batch in whole] == [[3] * 3 + [1] * 3 + [4] * 3, [1] * 3 + [5] * 3]
    for batch in whole:
        for first in range(0, len(batch), 3):
            seeds = [seed for _, seed in batch[first : first + 3]]
            assert seeds == [seeds[0], seeds[0] + 1, seeds[0] + 2]
    parts = [epoch_batches(drawn, 7, 2, rank, processes, views=3) for rank in range(processes)]
    for number, batch in enumerate(whole):
        sizes = [len(part[number]) for part in parts]
        assert [item for part in parts for item in part[number]] == batch
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("cached", [False, True])
def test_two_views_differ_and_have_one_label(tmp_path, cached):
    pixels = torch.randint(256, (6, 1, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images = LabeledImages(pixels, [0, 1, 2] * 2, ["a", "b", "c"], channels=1)
    augmented, _ = build_transforms(12, 1, shift=3)
    if cached:
        write_photos(tmp_path, classes=2, each=3)
        files = sorted(tmp_path.rglob("*.png"))
        images = LabeledImages(files, [0, 1, 2] * 2, ["a", "b", "c"], channels=1)
        images, _ = prepare(images, augmented, "memory")
        assert images.cache is not None
    reader = BatchReader(images.with_transform(augmented), 0, CPU)
    first, second = reader.read(epoch_batches([[5, 0, 1], [2, 3, 4]], 3, 1, views=2))
    assert first.labels.tolist() == [2, 2, 0, 0, 1, 1]
    for batch in (first, second):
        assert torch.equal(batch.labels[::2], batch.labels[1::2])
        assert not any(map(torch.equal, batch.images[::2], batch.images[1::2]))


class Watching(ContrastiveLoss):
    """Keeps the labels of its batches, and what it is told after steps."""

    seen: list = []  # noqa: RUF012

    def prepare(self, run):
        self.seen.append(run.labels("train").tolist())

    def forward(self, embeddings, labels, *more):
        self.labels = labels
        self.embeddings = embeddings.detach()
        return super().forward(embeddings, labels, *more)

    def after_step(self, run, indices, embeddings):
        assert torch.equal(self.labels[::2], self.labels[1::2])
        assert torch.equal(embeddings, self.embeddings[::2])
        self.seen.append((indices.tolist(), self.labels.tolist()))


def test_instances_ignore_the_true_labels(tmp_path):
    """Runs on true and on garbled labels are the same; an image's number is its label, and steps name it once."""
    Watching.seen.clear()
    with registry.isolated():
        pml_ext.register(Watching, name="watching")
        true, _ = finished(tmp_path / "true", *UNLABELED, "loss={name='watching'}", *TWO_EPOCHS)
        prepared, *steps = Watching.seen
        with garbled_labels():
            other, _ = finished(tmp_path / "garbled", *UNLABELED, "loss={name='watching'}", *TWO_EPOCHS)
    assert prepared == list(range(899))
    assert len(steps) == 8
    for indices, labels in steps:
        assert len(set(indices)) == 40
        assert labels[::2] == indices
    assert_close_networks(true, other)


@pytest.mark.parametrize(
    "settings",
    [
        ["data.augment.transforms=[{name='RandomErasing', p=0.5}, {name='RandomRotation', degrees=15}]"],
        ["loss.memory={size=200, start_epoch=2}", "loss.miner=pml/multi-similarity", "engine.micro_batch=30"],
        pytest.param(
            ["data.workers=1", "data.labels=given", "data.views=3", "sampler.batch_size=20"], marks=pytest.mark.slow
        ),
        pytest.param(["data.labels=clusters", "data.pseudo={clusters=60}"], marks=pytest.mark.slow),
    ],
    ids=["transforms", "memory", "labels", "clusters"],
)
def test_a_run_that_was_stopped_goes_on_exactly(tmp_path, settings):
    assert_the_same_when_resumed(tmp_path, *UNLABELED, *settings)


def test_classes_are_images_for_losses_with_classes(tmp_path):
    run = built(tmp_path, *UNLABELED, "loss={name='pml/proxy-anchor'}", recipe="cbml/digits")
    assert len(run.stages[0].loss.proxies) == len(run.data.training_images) == 899
    assert run.data.network_json(run.network.features)["classes"] == list(range(10))
    assert _normalized_together(run, run.stages[0]) == 80


def test_two_views_have_the_self_supervised_loss(tmp_path):
    """A first step without labels has the value of SelfSupervisedLoss on the embeddings of the two views."""
    run = built(tmp_path, *UNLABELED, "model.freeze_batch_norm=true", recipe="cbml/digits")
    run.epoch = 1
    stage = run.stages[0]
    run.enter_stage(stage)
    batches = epoch_batches([list(range(0, 80, 2))], 0, 1, views=2)
    labels = np.arange(len(run.data.training_images))
    objective, _ = run.objective(stage, recorded=False)
    images = next(iter(run.inputs.reader_of(stage).read(batches))).images
    run.trunk.eval()
    with torch.no_grad():
        embeddings = run.embedder(run.trunk(images))
    wanted = pml_ext.SelfSupervisedLoss(NTXentLoss(temperature=0.1))(embeddings[::2], embeddings[1::2])
    (step,) = run.engine.epoch(run.inputs.reader_of(stage).read(batches, labels), objective)
    run.inputs.close()
    assert step.loss == pytest.approx(float(wanted), rel=1e-5)
