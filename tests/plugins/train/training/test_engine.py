"""A step and an epoch: PML's trainer to the last digit, precision, clipping, compilation, and what is not finite."""

import copy
import functools
import itertools
import math
from unittest.mock import Mock

import pytest
import torch
from pytorch_metric_learning import losses, miners
from pytorch_metric_learning.trainers import MetricLossOnly
from torch import nn

from pml_ext import CrossBatchMemory
from pml_ext.errors import TrainingError
from pml_ext_train.data import LabeledImages
from pml_ext_train.recipe.schema import EngineTable
from pml_ext_train.training import Batch, Engine, Objective, WorkerDataset, epoch_batches
from pml_ext_train.training.batches import BatchReader
from pml_ext_train.training.engine import NotFiniteError

CPU = torch.device("cpu")
ITERATIONS = 4
BATCH = 12


def noisy(image):
    return image.float() / 255 + 0.1 * torch.rand(image.shape)


@pytest.fixture(scope="module")
def images():
    return LabeledImages(
        torch.randint(256, (32, 1, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8),
        torch.arange(32) % 4,
        list("abcd"),
        noisy,
        channels=1,
    )


@pytest.fixture(scope="module")
def batches(images):
    generator = torch.Generator().manual_seed(1)
    drawn = [
        [torch.randperm(len(images), generator=generator)[:BATCH].tolist() for _ in range(ITERATIONS)] for _ in range(2)
    ]
    return [epoch_batches(joined, 0, epoch) for epoch, joined in enumerate(drawn, start=1)]


class Parts:
    """A network with batch norm and dropout, a loss with parameters of its own, optimizers and schedules."""

    def __init__(self, loss=None):
        torch.manual_seed(0)
        self.trunk = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten()
        )
        self.embedder = nn.Linear(4 * 8 * 8, 6)
        self.loss = loss or losses.ProxyAnchorLoss(4, 6)
        self.miner = miners.MultiSimilarityMiner()
        self.optimizers = {
            "trunk_optimizer": torch.optim.Adam(self.trunk.parameters(), lr=1e-2, weight_decay=1e-3),
            "embedder_optimizer": torch.optim.SGD(self.embedder.parameters(), lr=1e-2, momentum=0.9),
        }
        if list(self.loss.parameters()):
            self.optimizers["metric_loss_optimizer"] = torch.optim.AdamW(self.loss.parameters(), lr=0.1)
        self.schedulers = {
            f"{name.removesuffix('_optimizer')}_scheduler_by_epoch": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
            for name, optimizer in self.optimizers.items()
        }

    def objective(self, **settings):
        settings = {"miner": self.miner, "schedulers": list(self.schedulers.values())} | settings
        return Objective(self.loss, self.optimizers, **settings)

    def state(self):
        return {
            f"{name}.{key}": value.clone()
            for name in ("trunk", "embedder", "loss")
            for key, value in getattr(self, name).state_dict().items()
        }

    def train(self, images, batches, workers=0, freeze=False, **settings):
        """Trains by the engine; all steps."""
        torch.manual_seed(5)
        engine = Engine(self.trunk, self.embedder, CPU, EngineTable(**settings), freeze)
        reader = BatchReader(images, workers, CPU)
        objective = self.objective()
        return [step for epoch in batches for step in engine.epoch(reader.read(epoch), objective)]


class Drawn(list, torch.utils.data.BatchSampler):
    """Batches as PML's trainer takes them."""


def train_by_pml(parts, images, batches, workers, freeze):
    """Trains by PML's trainer, one for each epoch; the losses of all steps."""
    torch.manual_seed(5)
    found = []
    for epoch, drawn in enumerate(batches, start=1):
        trainer = MetricLossOnly(
            {"trunk": parts.trunk, "embedder": parts.embedder},
            parts.optimizers,
            BATCH,
            {"metric_loss": parts.loss},
            WorkerDataset(images, workers),
            {"tuple_miner": parts.miner},
            ITERATIONS,
            CPU,
            sampler=Drawn(drawn),
            lr_schedulers=parts.schedulers,
            freeze_trunk_batchnorm=freeze,
            dataloader_num_workers=workers,
            end_of_iteration_hook=lambda trainer: found.append(trainer.losses["total_loss"].item()),
        )
        trainer.train(epoch, epoch)
    return found


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize(("workers", "freeze"), [(0, False), (2, True)])
@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")
def test_epochs_equal_pmls_trainer_exactly(images, batches, workers, freeze):
    ours = Parts()
    theirs = Parts()
    before = ours.state()
    steps = ours.train(images, batches, workers, freeze)
    after = torch.get_rng_state()
    assert [step.loss for step in steps] == train_by_pml(theirs, images, batches, workers, freeze)
    assert same(ours.state(), theirs.state())
    assert torch.equal(torch.get_rng_state(), after)  # so would a third epoch be
    assert [s.get_last_lr() for s in ours.schedulers.values()] == [s.get_last_lr() for s in theirs.schedulers.values()]
    moved = {key for key, value in ours.state().items() if not torch.equal(value, before[key])}
    still = {key for key in before if freeze and ("running" in key or "tracked" in key)}
    assert moved == before.keys() - still


def test_clipping_is_torchs_and_leaves_the_loss_alone(images, batches):
    ours = Parts()
    theirs = Parts()
    ours.train(images, batches[:1], clip_gradient=0.05)
    torch.manual_seed(5)
    norms = []
    for pixels, labels, _ in BatchReader(images, 0, CPU).read(batches[0]):
        for optimizer in theirs.optimizers.values():
            optimizer.zero_grad()
        embeddings = theirs.embedder(theirs.trunk(pixels))
        theirs.loss(embeddings, labels, theirs.miner(embeddings, labels)).backward()
        network = [*theirs.trunk.parameters(), *theirs.embedder.parameters()]
        norms.append(float(nn.utils.clip_grad_norm_(network, 0.05)))
        for optimizer in theirs.optimizers.values():
            optimizer.step()
    assert min(norms) > 0.05
    assert same(ours.state(), theirs.state())


@pytest.mark.skipif(torch.__version__.startswith("2.6."), reason="dropout of parts differs from that of the whole")
def test_micro_batches_train_as_the_whole_batch_does(images, batches):
    """With dropout, a miner and a loss that has parameters; batch norm is frozen."""
    whole = Parts()
    cut = Parts()
    for one, other in zip(
        whole.train(images, batches, freeze=True), cut.train(images, batches, freeze=True, micro_batch=5), strict=True
    ):
        torch.testing.assert_close(other.loss, one.loss, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(other.embeddings, one.embeddings, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(cut.state(), whole.state(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_is_near_full_precision(images, batches, precision):
    half = Parts(losses.ContrastiveLoss())
    full = Parts(losses.ContrastiveLoss())
    seen = []
    half.loss.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].dtype))
    half.trunk[0].register_forward_hook(lambda _, inputs, output: seen.append(output.dtype))
    steps = half.train(images, batches[:1], precision=precision)
    reference = full.train(images, batches[:1])
    assert set(seen) == {torch.float32, getattr(torch, precision)}
    assert all(value.dtype != getattr(torch, precision) for value in half.state().values())
    assert steps[0].loss != reference[0].loss
    assert steps[0].loss == pytest.approx(reference[0].loss, rel=2e-2)
    assert not same(half.state(), full.state())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_network_trains_the_same_weights(images, batches, monkeypatch):
    backend = Mock(side_effect=lambda graph, inputs: graph.forward)
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    ours = Parts()
    plain = Parts()
    freeze = ours.train(images, batches[:1], freeze=True, compile=True)
    assert backend.call_count >= 2  # trunk and embedder
    assert [step.loss for step in freeze] == pytest.approx([s.loss for s in plain.train(images, batches[:1], 0, True)])
    torch.testing.assert_close(ours.state(), plain.state(), rtol=1e-5, atol=1e-6)


def planted(call, value, in_gradient):
    """A contrastive loss that becomes what it is told to in one of its calls, as a value or in its gradient."""
    calls = itertools.count(1)

    def forward(embeddings, labels, indices_tuple):
        loss = losses.ContrastiveLoss()(embeddings, labels)
        if next(calls) != call:
            return loss
        if not in_gradient:
            return loss * value
        embeddings.register_hook(lambda gradient: gradient * value)
        return loss

    return as_module(forward)


def as_module(function):
    module = nn.Identity()
    module.forward = function
    return module


@pytest.mark.parametrize(
    ("value", "in_gradient", "text"),
    [
        (math.nan, False, "the loss became nan"),
        (math.inf, False, "the loss became inf"),
        (math.nan, True, "the gradient of trunk.0.weight became nan"),
        (math.inf, True, "the gradient of trunk.0.weight became (nan|-?inf)"),
    ],
)
@pytest.mark.parametrize("settings", [{}, {"clip_gradient": 1.0}, {"precision": "bfloat16"}])
def test_what_is_not_finite_stops_before_anything_changes(images, batches, value, in_gradient, text, settings):
    parts = Parts(planted(3, value, in_gradient))
    good = Parts(planted(99, value, in_gradient))
    with pytest.raises(NotFiniteError, match=text):
        parts.train(images, batches, **settings)
    good.train(images, [batches[0][:2]], **settings)
    network = {key for key in parts.state() if "running" not in key and "tracked" not in key}
    assert same({key: parts.state()[key] for key in network}, {key: good.state()[key] for key in network})


def test_gradients_with_overflowing_norms_are_finite(images, batches):
    assert [step.skipped for step in Parts(planted(3, 1e25, True)).train(images, batches[:1])] == [False] * ITERATIONS


def test_float16_leaves_out_a_step_that_overflows(images, batches):
    parts = Parts(planted(3, math.inf, True))
    engine = Engine(parts.trunk, parts.embedder, CPU, EngineTable(precision="float16"))
    engine.load_state_dict({"scaler": {**engine.state_dict()["scaler"], "scale": 256.0}, "overflows": 0})
    reading = BatchReader(images, 0, CPU).read(batches[0])
    found = [(step.skipped, parts.trunk[0].weight.clone()) for step in engine.epoch(reading, parts.objective())]
    skipped, weights = zip(*found, strict=True)
    assert skipped == (False, False, True, False)
    assert torch.equal(weights[1], weights[2])
    assert not torch.equal(weights[2], weights[3])
    assert engine.state_dict()["scaler"]["scale"] == 128.0
    again = Engine(parts.trunk, parts.embedder, CPU, EngineTable(precision="float16"))
    again.load_state_dict(engine.state_dict())
    assert again.state_dict() == engine.state_dict()


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda x: x.sum(1), r"a tensor of shape \[12\] instead of one value"),
        (lambda x: {"loss": x.sum()}, "a dict instead of one value"),
        (lambda x: x.detach().sum(), "does not depend on any trained parameter"),
        (lambda x: x.nan_to_num().square().sum(), "the embeddings became nan"),  # which the loss hides
    ],
)
def test_unusable_losses_are_refused_by_reason(images, batches, function, text):
    parts = Parts(as_module(lambda embeddings, labels, indices_tuple: function(embeddings)))
    parts.embedder.bias.data[2] = math.nan
    with pytest.raises(TrainingError, match=text):
        parts.train(images, batches)


def test_a_trunk_without_gradients_is_refused(images, batches):
    parts = Parts()
    parts.trunk.register_forward_hook(lambda module, inputs, output: output.detach())
    with pytest.raises(TrainingError, match="no parameter of the trunk Sequential has a gradient; look for detach"):
        parts.train(images, batches)
    parts.trunk.requires_grad_(False)
    assert len(parts.train(images, batches)) == sum(map(len, batches))


GOOD = Batch(torch.rand(8, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 4)
BAD = GOOD._replace(images=torch.full_like(GOOD.images, math.nan))


def test_steps_that_are_not_finite_are_skipped():
    """Nothing of it stays: no weight, no statistics of batch norms; after 30 one after the other training stops."""
    parts = Parts()
    engine = Engine(parts.trunk, parts.embedder, CPU, skip_nonfinite=True)
    before = parts.state()
    (step,) = engine.epoch([BAD], parts.objective())
    assert step.skipped
    assert same(parts.state(), before)
    assert [step.skipped for step in engine.epoch([GOOD, BAD, GOOD], parts.objective())] == [False, True, False]
    assert not same(parts.state(), before)
    with pytest.raises(NotFiniteError, match=r"became nan in 31 iterations in a row"):
        list(engine.epoch([BAD] * 31, parts.objective()))


def test_skipped_steps_leave_the_memory_alone(monkeypatch):
    memory = CrossBatchMemory(losses.ContrastiveLoss(), embedding_size=6, memory_size=5000)
    parts = Parts(memory)
    engine = Engine(parts.trunk, parts.embedder, CPU, skip_nonfinite=True)
    list(engine.epoch([GOOD], parts.objective(miner=None)))
    before = parts.state()
    place = memory.embedding_memory.data_ptr()
    copied = Mock(wraps=copy.deepcopy)
    monkeypatch.setattr(copy, "deepcopy", copied)
    (step,) = engine.epoch([BAD], parts.objective(miner=None))
    assert step.skipped
    assert same(parts.state(), before)
    assert (memory.filled, memory.queue_idx) == (8, 8)
    assert memory.embedding_memory.data_ptr() == place  # the queue itself stays where it is
    assert all(call.args[0].numel() < 100 for call in copied.call_args_list if torch.is_tensor(call.args[0]))
