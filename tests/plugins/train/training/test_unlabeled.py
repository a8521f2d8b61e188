"""Training without labels, on views of images and on clusters: no true label is looked at, and runs go on exactly."""

import itertools

import numpy as np
import pytest
import torch
from pytorch_metric_learning.losses import ContrastiveLoss, NTXentLoss

import pml_ext
from pml_ext import registry
from pml_ext.errors import ConfigError
from pml_ext.evaluation import kmeans
from pml_ext_train.data import LabeledImages, build_transforms, prepare
from pml_ext_train.launch.launch import train
from pml_ext_train.recipe import load_recipes
from pml_ext_train.training.batches import BatchReader, epoch_batches
from pml_ext_train.training.checks import _normalized_together

from ....overrides import typed
from .made_up_photos import write_photos
from .whole_runs import assert_close_networks, assert_the_same_when_resumed, built, finished, garbled_labels

CPU = torch.device("cpu")
UNLABELED = ["data.labels=instance", "data.views=2", "sampler={name='shuffle', batch_size=40}", "sampler.iterations=4"]
UNLABELED += ["loss={name='pml/ntxent', temperature=0.1}", "evaluation.baselines=false"]
TWO_EPOCHS = ["schedule.epochs=2", "schedule.milestones=[1]"]


@pytest.mark.usefixtures("without_report")
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


@pytest.mark.usefixtures("without_report")
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


@pytest.mark.usefixtures("without_report")
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


@pytest.mark.usefixtures("without_report")
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


@pytest.mark.usefixtures("without_report")
def test_classes_are_images_for_losses_with_classes(tmp_path):
    run = built(tmp_path, *UNLABELED, "loss={name='pml/proxy-anchor'}", recipe="cbml/digits")
    assert len(run.stages[0].loss.proxies) == len(run.data.training_images) == 899
    assert run.data.network_json(run.network.features)["classes"] == list(range(10))
    assert _normalized_together(run, run.stages[0]) == 80


@pytest.mark.usefixtures("without_report")
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


CLUSTERS = ("data.labels=clusters", "data.pseudo={clusters=20, batch_size=[30, 60]}", "sampler.m=3")
QUICK = (*CLUSTERS, "schedule.epochs=4", "schedule.milestones=[2]", "sampler.iterations=3", "model.trunk.width=8")
QUICK += ("evaluation.training_images=0", "evaluation.baselines=false")


def weights(folder):
    state = torch.load(folder / "checkpoints" / "model.pt", weights_only=True)
    return {f"{part}.{name}": value for part in ("trunk", "embedder") for name, value in state[part].items()}


class Looking(ContrastiveLoss):
    """Keeps what it sees of the epochs."""

    epochs: list = []  # noqa: RUF012

    def prepare(self, run):
        self.epochs.append({"labels": run.labels("train").numpy(), "before": True})

    def start_epoch(self, run):
        points = torch.nn.functional.normalize(run.embeddings("train"))
        self.epochs.append({"labels": run.labels("train").numpy(), "wanted": kmeans(points, 20).numpy(), "batches": []})

    def forward(self, embeddings, labels, *more):
        self.seen = labels.numpy()
        return super().forward(embeddings, labels, *more)

    def after_step(self, run, indices, embeddings):
        assert len(embeddings) == len(indices)
        self.epochs[-1]["batches"].append((indices.numpy(), self.seen))


@pytest.fixture(scope="module")
def looked(tmp_path_factory):
    """A run whose loss looks at everything; and the same run on images whose labels say nothing."""
    folder = tmp_path_factory.mktemp("pseudo")
    with pytest.MonkeyPatch.context() as patch, registry.isolated():
        pml_ext.register(Looking, name="looking")
        patch.setattr("pml_ext_train.results.finish.write_run_report", lambda *_: None)
        train("cbml/digits", out=folder / "true", overrides=typed((*QUICK, "loss.name=looking")), device="cpu")
        epochs = list(Looking.epochs)
        with garbled_labels():
            train("cbml/digits", out=folder / "garbled", overrides=typed((*QUICK, "loss.name=looking")), device="cpu")
    Looking.epochs.clear()
    return folder, epochs


def test_clusters_ignore_the_true_labels(looked):
    one, other = (weights(looked[0] / name) for name in ("true", "garbled"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_each_epoch_has_clusters_and_a_batch_size(looked):
    _, (before, *epochs) = looked
    assert len(epochs) == 4
    np.testing.assert_array_equal(before["labels"], epochs[0]["labels"])
    for epoch in epochs:
        np.testing.assert_array_equal(epoch["labels"], epoch["wanted"])
        for indices, labels in epoch["batches"]:
            np.testing.assert_array_equal(labels, epoch["labels"][indices])
            assert set(np.bincount(labels)) <= {0, 3}  # the sampler goes by the clusters
    assert any((one["labels"] != other["labels"]).any() for one, other in itertools.pairwise(epochs))
    sizes = [{len(labels) for _, labels in epoch["batches"]} for epoch in epochs]
    assert all(len(each) == 1 for each in sizes)
    assert len(set.union(*sizes)) > 1
    assert all(30 <= size <= 60 and size % 3 == 0 for size in set.union(*sizes))


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (("loss.name=pml/proxy-anchor",), "loss: pml/proxy-anchor keeps values for each class"),
        (("loss.regularizer=density",), "loss.regularizer: density keeps values for each class"),
        (("loss.memory.size=200",), "loss.memory: it keeps labels of past batches"),
        (
            ("evaluation.validation=0.2", "evaluation.select=map_at_r"),
            "evaluation.validation: it holds out the data's classes",
        ),
        (("data.labels=given", "data.pseudo.clusters=3"), "pseudo goes with labels = 'clusters'"),
        (("stages=[{epochs=1, loss={name='pml/arcface'}}]",), "stages.0.loss: pml/arcface keeps values"),
    ],
)
def test_what_does_not_go_with_clusters(overrides, text):
    with pytest.raises(ConfigError, match=text):
        load_recipes("cbml/digits", typed(("data.labels=clusters", *overrides)))


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("data.pseudo.clusters=10", "10 classes x m = 3 gives at most 30 images a batch"),
        ("data.pseudo.clusters=9999", r"data.pseudo.clusters: found 9999, but there are only \d+ training images"),
    ],
)
def test_clusters_without_a_batch_are_told_before_training(tmp_path, override, text):
    with pytest.raises(ConfigError, match=text):
        train("cbml/digits", out=tmp_path / "out", overrides=typed((*QUICK, override)), device="cpu")
