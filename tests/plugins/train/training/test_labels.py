"""What takes the place of labels: views of images, clusters, relations; no true label is looked at."""

import itertools

import numpy as np
import pytest
import torch
from PIL import Image
from pytorch_metric_learning.losses import ContrastiveLoss, NTXentLoss

import pml_ext
from pml_ext import CBMLLoss, ConfigError, DataError, Hierarchy, SharedLabel, WithRelation, registry, train
from pml_ext.evaluation import kmeans
from pml_ext.relations import RELATIONS
from pml_ext_train.data import LabeledImages, build_transforms, folder, prepare, table
from pml_ext_train.recipe import build_loss, loss_context, schema
from pml_ext_train.training.batches import BatchReader, epoch_batches
from pml_ext_train.training.checks import _normalized_together
from pml_ext_train.training.samplers import build_sampler

from ....overrides import typed
from ..recipe.recipes import one
from .made_up_photos import write_photos
from .whole_runs import assert_close_networks, assert_the_same_when_resumed, built, finished, garbled_labels

UNLABELED = [
    "data.labels=instance",
    "data.views=2",
    "sampler={name='shuffle', batch_size=40}",
    "sampler.iterations=4",
    "loss={name='pml/ntxent', temperature=0.1}",
    "evaluation.baselines=false",
]
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
    images = LabeledImages(
        torch.randint(256, (6, 1, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)),
        [0, 1, 2] * 2,
        ["a", "b", "c"],
        channels=1,
    )
    augmented, _ = build_transforms(12, 1, shift=3)
    if cached:
        write_photos(tmp_path, classes=2, each=3)
        images = LabeledImages(sorted(tmp_path.rglob("*.png")), [0, 1, 2] * 2, ["a", "b", "c"], channels=1)
        images, _ = prepare(images, augmented, "memory")
        assert images.cache is not None
    first, second = BatchReader(images.with_transform(augmented), 0, torch.device("cpu")).read(
        epoch_batches([[5, 0, 1], [2, 3, 4]], 3, 1, views=2)
    )
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
            ["data.workers=1", "data.labels=given", "data.views=3", "sampler.batch_size=20"], marks=pytest.mark.nightly
        ),
        pytest.param(["data.labels=clusters", "data.pseudo={clusters=60}"], marks=pytest.mark.nightly),
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


# Clusters


CLUSTERED = (
    "data.labels=clusters",
    "data.pseudo={clusters=20, batch_size=[30, 60]}",
    "sampler.m=3",
    "schedule.epochs=4",
    "schedule.milestones=[2]",
    "sampler.iterations=3",
    "model.trunk.width=8",
    "evaluation.training_images=0",
    "evaluation.baselines=false",
)


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
        train("cbml/digits", out=folder / "true", overrides=typed((*CLUSTERED, "loss.name=looking")), device="cpu")
        epochs = list(Looking.epochs)
        with garbled_labels():
            train(
                "cbml/digits", out=folder / "garbled", overrides=typed((*CLUSTERED, "loss.name=looking")), device="cpu"
            )
    Looking.epochs.clear()
    return folder, epochs


def test_clusters_ignore_the_true_labels(looked):
    files = (looked[0] / name / "checkpoints" / "model.pt" for name in ("true", "garbled"))
    assert_close_networks(*(torch.load(file, weights_only=True) for file in files))


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
    ("override", "text"),
    [
        ("data.pseudo.clusters=10", "10 classes x m = 3 gives at most 30 images a batch"),
        ("data.pseudo.clusters=9999", r"data.pseudo.clusters: found 9999, but there are only \d+ training images"),
    ],
)
def test_clusters_without_a_batch_are_told_before_training(tmp_path, override, text):
    with pytest.raises(ConfigError, match=text):
        train("cbml/digits", out=tmp_path / "out", overrides=typed((*CLUSTERED, override)), device="cpu")


# Relations


QUICK = (
    "schedule.epochs=1",
    "sampler.iterations=2",
    "data.image_size=16",
    "evaluation.figures=few",
    "model.trunk={name='convnet', blocks=2, width=4}",
    "model.embedding_size=8",
)


def write_images(place, names):
    generator = np.random.default_rng(0)
    for name in names:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 255, (18, 18, 3)).astype(np.uint8)).save(place / name)


@pytest.fixture
def tree(tmp_path):
    """A folder of classes in folders, two levels deep, and one that goes deeper."""
    names = [f"{above}/{below}/{k}.png" for above in ("bird", "fish", "tree") for below in ("x", "y") for k in range(6)]
    write_images(tmp_path / "photos", [*names, "bird/x/old/7.png"])
    return tmp_path / "photos"


@pytest.mark.usefixtures("without_report")
def test_a_run_on_a_table_of_label_sets(tmp_path):
    """With 12 images of each set."""
    sets = ["cat|dog", "dog", "dog|cat|owl", "owl", "cat"] * 12
    rows = [f"{each},{k}.png,{'train' if k < 40 else 'validation'}" for k, each in enumerate(sets)]
    write_images(tmp_path, [f"{k}.png" for k in range(60)])
    listed = tmp_path / "mine.csv"
    listed.write_text("\n".join(["label,path,split", *rows]))
    settings = [
        f"data.name=table:{listed}",
        "data.relation={name='shared-label', graded=false}",
        *QUICK,
        "loss={name='pml/contrastive'}",
        "evaluation.ndcg_at=[10]",
        "sampler={name='m-per-label', m=4, batch_size=16}",
    ]
    after = train("fit/photographs", out=tmp_path / "run", overrides=typed(settings), device="cpu")[0]["after"]
    assert {"recall_at_1", "ndcg_at_10", "map_at_r", "nmi"} <= after.keys()
    assert after["recall_at_1"] > 0.3  # two random sets share a label more often than not
    with pytest.raises(DataError, match="separate them by"):
        table(path=str(listed))
    assert table(path=str(listed), label_sets=True).train.class_names == ["cat", "cat|dog", "cat|dog|owl", "dog", "owl"]


@pytest.mark.usefixtures("without_report")
def test_a_run_on_a_folder_as_a_tree(tree, tmp_path):
    settings = [
        f"data.name=folder:{tree}",
        "data.levels=2",
        "data.split=image",
        "evaluation.ndcg_at=[5]",
        *QUICK,
        "data.relation={name='hierarchy', graded=true}",
        "loss={name='cbml'}",
        "sampler={name='tree', m=2, batch_size=12, parents=3}",
    ]
    after = train("fit/photographs", out=tmp_path / "run", overrides=typed(settings), device="cpu")[0]["after"]
    assert after["recall_at_1"] >= after["recall_at_1_level_2"]
    assert 0 < after["ndcg_at_5"] <= 1
    splits = folder(path=str(tree), split="image", levels=2)
    assert splits.train.class_names == [f"{above}/{below}" for above in ("bird", "fish", "tree") for below in "xy"]
    assert not splits.note
    with pytest.raises(ConfigError, match="levels of a folder"):
        folder(path=str(tree), levels=0)


def test_losses_and_miners_get_the_relation():
    def loss_of(names, *settings):
        recipe = one("cbml/digits", *settings)
        return build_loss(recipe.loss, loss_context(recipe, [*range(len(names))], names))

    tree = "data.relation={name='hierarchy', level=1}"
    shared = "data.relation=shared-label"
    table = [[1, 1], [0, 1]]
    for loss, kind in (("cbml", CBMLLoss), ("pml/contrastive", WithRelation), ("pddm", WithRelation)):
        more = ", distance={name='pddm'}" if loss == "pddm" else ""
        given, _ = loss_of(["a/x", "a/y", "b/z"], tree, f"loss={{name='{loss}'{more}}}")
        assert isinstance(given, kind)
        assert given.relation.paths == [("a", "x"), ("a", "y"), ("b", "z")]
    parts = "memory={size=256}, miner='pml/multi-similarity', regularizer='pml/lp'"
    memory, miner = loss_of(["a|b", "b"], shared, f"loss={{name='pml/contrastive', {parts}}}")
    assert miner is None
    assert isinstance(memory.miner, WithRelation)
    assert memory.relation.table.tolist() == table
    swapped = "miner={name='anchor-swap', miner={name='semi-hard-triplet'}}"
    _, miner = loss_of(["a|b", "b"], shared, f"loss={{name='batch-all-triplets', {swapped}}}")
    assert miner.relation.table.tolist() == table
    assert loss_of(["a/x", "b"], "data.relation=hierarchy", "loss.relation=none")[0].relation is None


def test_recipes_know_the_layers_relations():
    assert set(schema.RELATIONS) == set(RELATIONS)


def test_unknown_classes_are_found_by_name():
    recipe = one("cbml/digits", "data.relation={name='negatives-only', unknown='other'}")
    assert loss_context(recipe, [0, 1], ["cat", "other"])["relation"].unknown == 1
    with pytest.raises(ConfigError, match="no class is called 'other'; classes: cat, dog"):
        loss_context(recipe, [0, 1], ["cat", "dog"])


def test_a_sampler_gets_the_relation():
    names = ["a|b", "b", "c"]
    labels = np.arange(60) % 3
    some = LabeledImages(torch.zeros(60, 1, 4, 4, dtype=torch.uint8), labels, names)
    recipe = one("cbml/digits", "data.relation=shared-label", "sampler={name='m-per-label', m=2, batch_size=6}")
    sampler, _ = build_sampler(recipe.sampler, some, 0, SharedLabel.of_classes(names))
    assert (labels[list(sampler)[:6]] != 2).sum() >= 3
    recipe = one("cbml/digits", "data.relation=hierarchy", "sampler={name='tree', batch_size=8, m=4}")
    with pytest.raises(ConfigError, match="tree"):
        build_sampler(recipe.sampler, some, 0, Hierarchy(names))
    of_pml = one("cbml/digits", "sampler={name='pml/hierarchical', samples_per_class=2, batch_size=8}")
    with pytest.raises(ConfigError, match="labels of two levels.* --set sampler.name=tree"):
        build_sampler(of_pml.sampler, some, 0, Hierarchy(names))
