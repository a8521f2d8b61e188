"""Clusters as labels: no label of a training image is looked at, each epoch has its own, and runs go on exactly."""

import itertools

import numpy as np
import pytest
import torch
from pytorch_metric_learning.losses import ContrastiveLoss

import pml_ext
from pml_ext import registry
from pml_ext.errors import ConfigError
from pml_ext.evaluation import kmeans
from pml_ext_train.launch.launch import train
from pml_ext_train.recipe import load_recipes

from ....overrides import typed
from .whole_runs import garbled_labels

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
