"""A component in use: memory, operators, devices, tiles, PML's trainer."""

import functools
import tempfile
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from ... import pml
from ...distributed.devices import accelerator
from ...losses import RegularizedLoss
from ..batches import CLOSE, Batch, batch_of, new_leaf
from ..calling import (
    CountedOperations,
    SavedBytes,
    call,
    call_forms,
    compute,
    error_summary,
    is_random,
    needs,
    outcome,
    seeded,
)
from ..comparing import close, gradient, gradients
from ..second_device import SecondDevice, in_words
from ..subject import SkipCheck, Subject, applies_to, require, set_seed, skip_unless, with_noise

MATRICES = 64  # of B x B, the most that a component may save for the backward pass
MATRICES_OF_TILES = 4  # the most of a distance in tiles, which returns one
_STEP = 0.05  # length of a step per number that moves, whatever the size of the gradient
_STEPS = 60  # of training, in check_classes_separate
_GAIN = 0.1  # least share of the wrong order of pairs that it must mend


def _growing(subject: Subject, classes: int, factor: int = 2) -> list[Batch]:
    """A batch of ``classes`` x 4 images and one ``factor`` times as large."""
    if subject.has_class_rows or any(True for _ in subject.make().parameters()):
        each = max(2, 4 * classes // subject.classes)  # also of a hundred classes
        return [batch_of(subject, (subject.classes, size), torch.float32) for size in (each, factor * each)]
    batches = []
    for images in (4 * classes, 4 * factor * classes):
        batch = batch_of(subject, torch.arange(images) % subject.classes, torch.float32)
        batches.append(Batch(batch.embeddings, torch.arange(images) // 4))
    return batches


@applies_to("loss")
def check_classes_separate(subject: Subject) -> str:
    """Steps along the gradient must bring images of the same class together.

    The share of pairs in the right order, before and after, shows a wrong sign.
    """
    needs(subject, "labels")
    gains = []
    for case in (CLOSE[0], CLOSE[1], CLOSE[4]):
        gain = _gain_of_training(subject, batch_of(subject, **case))
        if gain is None:
            continue
        gains.append(gain)
        if gain >= _GAIN:
            return f"{gain:.0%} of the wrong order of pairs is mended in at most {_STEPS} steps"
    skip_unless(gains, "its gradient is 0 in these batches")
    raise AssertionError(
        f"{_STEPS} steps along its gradient do not separate classes: of the wrong order of pairs, {max(gains):.0%} is "
        "mended at best; look at the signs, and at which pairs are positive"
    )


def _gain_of_training(subject: Subject, batch: Batch) -> float | None:
    """The share of wrongly ordered pairs that training corrects; None without movement."""
    component = with_noise(subject.make())
    points = new_leaf(batch.embeddings)
    leaves = [points, *(parameter for parameter in component.parameters() if parameter.requires_grad)]
    before = _share_in_order(points, batch.labels)
    gain: float | None = None
    for step in range(1, _STEPS + 1):
        set_seed(step)
        slopes = gradients(call(component, Batch(points, batch.labels)), leaves)
        with torch.no_grad():
            for leaf, slope in zip(leaves, slopes, strict=True):
                leaf -= _STEP * slope / (slope.norm() + 1e-12) * leaf.numel() ** 0.5
        if step % 10 > 0:
            continue
        if torch.equal(points, batch.embeddings):
            return None
        after = _share_in_order(points, batch.labels)
        gains = [(new - old) / (1 - old) for old, new in zip(before, after, strict=True) if old < 1]
        gain = max(gains, default=None)
        if gain is None or gain >= _GAIN:
            break
    return gain


def _share_in_order(points: Tensor, labels: Tensor) -> list[float]:
    shares = []
    same = labels[:, None] == labels
    others = ~torch.eye(len(labels), dtype=torch.bool)
    for x in (points.detach(), torch.nn.functional.normalize(points.detach())):
        distances = torch.cdist(x, x)
        positives = distances[same & others]
        negatives = distances[~same]
        shares.append(float((positives[:, None] < negatives).double().mean()))
    return shares


def _counted(subject: Subject, classes: int) -> list[CountedOperations]:
    found = []
    for batch in _growing(subject, classes):
        component = subject.make().float()
        with CountedOperations() as counted:
            call(component, batch)
        found.append(counted)
    return found


@applies_to("loss")
def check_memory_growth(subject: Subject) -> None:
    """Memory must grow at most with the square of the batch size."""
    small, large = _counted(subject, 24)
    growth = large.largest / small.largest
    require(
        growth <= 5.5 or large.largest <= 1 << 18,
        f"twice the batch gives a tensor {growth:.1f} times as large; form no triplets",
    )


@applies_to("loss", "miner", "regularizer", "distance")
def check_no_loop_over_anchors(subject: Subject) -> None:
    """A Python loop over anchors launches too many operators, which a GPU waits for."""
    small, large = _counted(subject, 12)
    times = large.count / small.count
    require(times <= 1.7, f"twice the batch takes {times:.1f} times the operators: a loop over images")


@applies_to("loss", "regularizer", "distance")
def check_saved_bytes(subject: Subject) -> str:
    """Memory for the backward pass is at most 64 ``B x B`` matrices, linear with "tiles"."""
    tiles = "tiles" in subject.capabilities
    distance = subject.kind == "distance"
    factor = 4 if tiles else 2
    saved = []  # images and bytes of each batch
    for batch in _growing(subject, 48 if tiles else 24, factor):
        component = subject.make().float()
        with SavedBytes(batch.embeddings, batch.labels, *component.parameters(), *component.buffers()) as counted:
            counted.leave_out(call(component, batch))
        saved.append((len(batch.labels), counted.total))
    (size, few), (large, many) = saved
    growth = many / max(1, few)
    matrices = many / (4 * large**2)
    what = f"a batch of {large} has {many >> 10} KiB saved for the backward pass"
    require(
        not tiles or distance or growth <= 1.5 * factor or many <= 1 << 20,
        f"{what}, {growth:.1f} times as many as for a batch of {size}, although it says that it has tiles; compute "
        "them again in the backward pass, by torch.utils.checkpoint.checkpoint",
    )
    require(
        matrices <= (MATRICES_OF_TILES if tiles and distance else MATRICES),
        f"{what}, {matrices:.0f} matrices of B x B; tiles can be computed again in the backward",
    )
    return f"{what}, {matrices:.1f} matrices of B x B"


@applies_to("loss", "regularizer", slow=True)
def check_no_host_sync(subject: Subject) -> None:
    """After the first call, nothing may make the host wait for the device."""
    batch = batch_of(subject, dtype=torch.float32)
    with SecondDevice() as second:
        component = second.move(subject.make().float())
        there = Batch(new_leaf(batch.embeddings.to(second.device)), batch.labels.to(second.device))
        try:
            compute(component, there)
            second.clear()
            for info in compute(component, there).values():
                gradient(torch.as_tensor(info["losses"]).sum(), there.embeddings)
        except SkipCheck:
            raise
        except Exception as error:
            raise SkipCheck(f"it does not run on another device than the CPU, see check_devices: {error}") from None
    waits = in_words(second.waits)
    require(not waits, f"compute_loss, or its gradient, makes the host wait for the device: {waits}")


@applies_to("loss", "miner", "regularizer")
def check_tiles(subject: Subject) -> None:
    """Tiles of any size must give the result of the whole matrix."""
    skip_unless(
        getattr(subject.make(), "tile_size", 0) != 0 and getattr(subject.make(), "tiles", "rows") is not None,
        "it has no tiles: no attribute tile_size",
    )

    def in_tiles(batch: Batch, size: int) -> list[Tensor]:
        component = subject.make()
        component.tile_size = size
        return outcome(component, batch)

    ragged = torch.repeat_interleave(torch.arange(subject.classes), torch.arange(subject.classes) % 4 + 1)
    for batch in (batch_of(subject), batch_of(subject, ragged)):
        expected = in_tiles(batch, len(batch.labels))
        for size in (1, 3, 7):
            text = f"in tiles of {size} the result differs; an equation that takes other anchors' rows has tiles = None"
            close(in_tiles(batch, size), expected, text, atol=1e-9)


@applies_to("loss", "miner", "regularizer", "distance", slow=True)
def check_devices(subject: Subject) -> str:
    """A simulated :class:`pml_ext.testing.SecondDevice`, and a GPU, must agree with the CPU."""
    expected = _outcomes(subject, subject.make().float(), torch.device("cpu"))
    try:
        with SecondDevice() as second:
            component = second.move(subject.make().float())
            actual = [tensor.cpu() for tensor in _outcomes(subject, component, second.device)]
            second.clear()
            _outcomes(subject, component, second.device, plain=True)
    except Exception as error:
        raise AssertionError(f"on another device than the CPU: {error_summary(error)}") from error
    close(actual, expected, "another device gives a different value or gradient", 1e-3, 1e-4)
    if (name := accelerator()) and not is_random(subject):
        there = _outcomes(subject, subject.make().float().to(name), torch.device(name))
        text = f"the {name} device gives a different value or gradient"
        close([tensor.cpu() for tensor in there], expected, text, 1e-3, 1e-4)
    return f"the host waits for the device: {in_words(second.waits + second.shapes) or 'nowhere'}"


def _outcomes(subject: Subject, component: Any, device: torch.device, plain: bool = False) -> list[Tensor]:
    batches = []
    for seed in (0, 1):
        on_cpu = batch_of(subject, (4, 4), torch.float32, seed)
        batches.append(Batch(new_leaf(on_cpu.embeddings.to(device)), on_cpu.labels.to(device)))
    batch, other = batches
    forms: list[dict[str, Any]] = [{}]
    if not plain:
        references = Batch(other.embeddings.detach(), other.labels)
        forms = list(call_forms(subject, batch, references).values())
    outcomes: list[Tensor] = []
    for named in forms:
        value = seeded(component, batch, **named)
        parts = value if isinstance(value, tuple) else (value,)
        kind = "indices" if subject.kind == "miner" else "value"
        require(
            all(part.device == batch.embeddings.device for part in parts),
            f"the {kind} of a batch elsewhere are on the CPU; make all on embeddings.device",
        )
        outcomes += value if subject.kind == "miner" else (value.detach(), gradient(value.sum(), batch.embeddings))
    return outcomes


@applies_to("loss", "miner", "regularizer", slow=True)
def check_pml_trainer(subject: Subject) -> None:
    """A component trains in PML's ``MetricLossOnly`` while ``HookContainer`` records."""
    import tqdm

    try:
        from record_keeper import RecordKeeper, RecordWriter
    except ImportError as error:
        raise SkipCheck(f"PML's records need the package record-keeper: {error}") from None
    if subject.kind == "loss":
        needs(subject, "labels")
    with mock.patch.object(pml.common_functions, "COLLECT_STATS", True):
        component = subject.make().float()
    network = torch.nn.Linear(subject.size, subject.size)
    batch = batch_of(subject, dtype=torch.float32)
    before = network.weight.detach().clone()
    loss: torch.nn.Module = pml.ContrastiveLoss()
    miners = {}
    if subject.kind == "loss":
        loss = component
    elif subject.kind == "regularizer":
        loss = RegularizedLoss(loss, component, 0.5)
    else:
        miners = {"tuple_miner": component}
    with tempfile.TemporaryDirectory() as folder:
        names = pml.common_functions.list_of_recordable_attributes_list_names()
        keeper = RecordKeeper(record_writer=RecordWriter(folder), attributes_to_search_for=names)
        trainer = pml.MetricLossOnly(
            models={"trunk": network, "embedder": torch.nn.Identity()},
            optimizers={"trunk_optimizer": torch.optim.SGD(network.parameters(), lr=0.1)},
            loss_funcs={"metric_loss": loss},
            mining_funcs=miners,
            dataset=torch.utils.data.TensorDataset(batch.embeddings.detach(), batch.labels),
            dataloader_num_workers=0,
            batch_size=len(batch.labels),
            iterations_per_epoch=2,
            end_of_iteration_hook=pml.HookContainer(keeper, log_freq=1).end_of_iteration_hook,
        )
        try:
            with mock.patch("tqdm.tqdm", functools.partial(tqdm.tqdm, disable=True)):
                trainer.train(num_epochs=1)
            keeper.save_records()
        except Exception as error:
            text = f"PML's trainer, with its HookContainer, stops: {error_summary(error)}"
            raise AssertionError(f"{text}; no parameter, buffer or recorded attribute may be empty") from error
    require(
        subject.kind != "loss" or not torch.equal(network.weight, before),
        "two iterations of PML's MetricLossOnly left the network unchanged",
    )
