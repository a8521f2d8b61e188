"""Several views of an image in a batch, with labels and without: seeds, kept features, components, resumed runs."""

import numpy as np
import pytest
import torch
from pytorch_metric_learning.losses import ContrastiveLoss, NTXentLoss

import pml_ext
from pml_ext import registry
from pml_ext_train.data import LabeledImages, build_transforms, prepare
from pml_ext_train.recipe import load_recipe
from pml_ext_train.training import run_data
from pml_ext_train.training.batches import BatchReader, epoch_batches
from pml_ext_train.training.checks import _normalized_together
from pml_ext_train.training.run import Run

from ....overrides import typed
from .made_up_photos import write_photos
from .short_runs import SHORT, assert_the_same_when_resumed, finished

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
    """The same with workers, and from a cache."""
    pixels = torch.randint(256, (6, 1, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images = LabeledImages(pixels, [0, 1, 2] * 2, ["a", "b", "c"], channels=1)
    augmented, _ = build_transforms(12, 1, shift=3)
    if cached:
        write_photos(tmp_path, classes=2, each=3)
        files = sorted(tmp_path.rglob("*.png"))
        images = LabeledImages(files, [0, 1, 2] * 2, ["a", "b", "c"], channels=1)
        images, _ = prepare(images, augmented, "memory")
        assert images.cache is not None
    epoch = epoch_batches([[5, 0, 1], [2, 3, 4]], 3, 1, views=2)
    drawn = []
    for workers in (0, 1):
        reader = BatchReader(images.with_transform(augmented), workers, CPU)
        drawn.append(list(reader.read(epoch)))
        reader.close()
    for (one, labels, _), (other, same_labels, _) in zip(*drawn, strict=True):
        assert torch.equal(one, other)
        assert torch.equal(labels, same_labels)
        assert torch.equal(labels[::2], labels[1::2])
        assert all(not torch.equal(first, second) for first, second in zip(one[::2], one[1::2], strict=True))
    assert drawn[0][0][1].tolist() == [2, 2, 0, 0, 1, 1]


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


def test_instances_ignore_the_true_labels(tmp_path, monkeypatch):
    """Runs on true and on garbled labels are the same; an image's number is its label, and steps name it once."""
    real = run_data.build_dataset

    def garbled(*arguments):
        splits = real(*arguments)
        splits.train.labels[:] = np.random.default_rng(0).permutation(splits.train.labels)
        return splits

    Watching.seen.clear()
    with registry.isolated():
        pml_ext.register(Watching, name="watching")
        true, _ = finished(tmp_path / "true", *UNLABELED, "loss={name='watching'}", *TWO_EPOCHS)
        prepared, *steps = Watching.seen
        monkeypatch.setattr(run_data, "build_dataset", garbled)
        other, _ = finished(tmp_path / "garbled", *UNLABELED, "loss={name='watching'}", *TWO_EPOCHS)
    assert prepared == list(range(899))
    assert len(steps) == 8
    for indices, labels in steps:
        assert len(set(indices)) == 40
        assert labels[::2] == indices
    for part in ("trunk", "embedder"):
        assert all(torch.equal(true[part][name], other[part][name]) for name in true[part])


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
    settings = [*SHORT, *UNLABELED, "loss={name='pml/proxy-anchor'}"]
    run = Run(load_recipe("cbml/digits", typed(settings)), "cbml/digits", tmp_path)
    assert len(run.stages[0].loss.proxies) == len(run.data.training_images) == 899
    assert run.data.network_json(run.network.features)["classes"] == list(range(10))
    assert _normalized_together(run, run.stages[0]) == 80


def test_two_views_have_the_self_supervised_loss(tmp_path):
    """A first step without labels has the value of SelfSupervisedLoss on the embeddings of the two views."""
    recipe = load_recipe("cbml/digits", typed([*SHORT, *UNLABELED, "model.freeze_batch_norm=true"]))
    run = Run(recipe, "cbml/digits", tmp_path)
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
