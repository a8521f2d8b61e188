"""The cost of a component: memory, operators, waits for the device; the same values in tiles and micro-batches."""

from __future__ import annotations

import torch
from torch import Tensor

from ...benchmark import peak_bytes
from ...losses import CachedGradients
from ..calling import CountedOperations, SavedBytes, call, close, compute, gradient, needs, seeded
from ..second_device import SecondDevice, in_words
from ..subject import Batch, SkipCheck, Subject, applies_to, batch_of, fresh, labels_of

MATRICES = 64  # of B x B, that a component may keep for the backward pass
MATRICES_OF_TILES = 4  # that a distance in tiles may, which gives one
MICRO_BATCH = 5  # which does not divide the batch


def _growing(subject: Subject, classes: int, factor: int = 2) -> list[Batch]:
    """A batch of some classes x 4, and a larger one; of more images per class where classes are parameters."""
    if subject.has_rows or any(True for _ in subject.make().parameters()):
        each = 4 * classes // subject.classes
        return [batch_of(subject, (subject.classes, size), torch.float32) for size in (each, factor * each)]
    batches = []
    for count in (classes, factor * classes):
        batch = batch_of(subject, torch.arange(4 * count) % subject.classes, torch.float32)
        batches.append(Batch(batch.embeddings, labels_of(count, 4)))
    return batches


@applies_to("loss", slow=True)
def check_memory_growth(subject: Subject) -> None:
    """Memory that grows with the cube of the batch ends at a few hundred images; quadratic or better is wanted."""
    loss = subject.make().float()
    small, large = (
        peak_bytes(lambda x, y: call(loss, Batch(x, y)), batch.embeddings, batch.labels)
        for batch in _growing(subject, 24)
    )
    if large > 5.5 * small and large > 1 << 20:
        raise AssertionError(f"twice the batch takes {large / small:.1f} times the memory; form no triplets")


@applies_to("loss", "regularizer", "distance")
def check_saved_bytes(subject: Subject) -> str:
    """Autograd keeps memory until the backward pass, which the network lacks; "tiles" promises that it is little.

    It may be a few matrices of ``B x B``. A loss that says it has ``"tiles"`` computes them again in the backward pass,
    so that what it keeps grows as the batch does; a distance, whose value is such a matrix, keeps hardly more.
    """
    tiles, distance = "tiles" in subject.capabilities, subject.kind == "distance"
    factor = 4 if tiles else 2
    saved: dict[int, int] = {}
    for batch in _growing(subject, 48 if tiles else 24, factor):
        component = subject.make().float()
        with SavedBytes(batch.embeddings, batch.labels, *component.parameters(), *component.buffers()) as counted:
            counted.leave_out(call(component, batch))
        saved[len(batch.labels)] = counted.total
    (size, few), (large, many) = saved.items()
    growth, matrices = many / max(1, few), many / (4 * large**2)
    what = f"a batch of {large} has {many >> 10} KiB saved for the backward pass"
    if tiles and not distance and growth > 1.5 * factor and many > 1 << 20:
        raise AssertionError(
            f"{what}, {growth:.1f} times as many as for a batch of {size}, although it says that it has tiles; "
            "compute them again in the backward pass, by torch.utils.checkpoint.checkpoint(..., use_reentrant=False)"
        )
    if matrices > (MATRICES_OF_TILES if tiles and distance else MATRICES):
        raise AssertionError(f"{what}, {matrices:.0f} matrices of B x B; tiles can be computed again in the backward")
    return f"{what}, {matrices:.1f} matrices of B x B"


@applies_to("loss", "miner", "regularizer", "distance")
def check_no_loop_over_anchors(subject: Subject) -> None:
    """A Python loop over anchors launches operators for each; on a GPU that is what training waits for."""
    counts = []
    for batch in _growing(subject, 12):
        component = subject.make().float()
        with CountedOperations() as counted:
            call(component, batch)
        counts.append(counted.count)
    if counts[1] > 1.7 * counts[0]:
        times = f"{counts[1] / counts[0]:.1f} times"
        raise AssertionError(f"twice the batch takes {times} the operators: a loop over images; use whole matrices")


@applies_to("loss", "regularizer", slow=True)
def check_no_host_sync(subject: Subject) -> None:
    """``.item()``, ``.tolist()``, ``.cpu()`` and ``bool()`` make the host wait for the device in every iteration.

    The first call may look at what it got. A shape that depends on values waits too, and is left to the author.
    """
    batch = batch_of(subject, dtype=torch.float32)
    with SecondDevice() as second:
        component = second.move(subject.make().float())
        there = Batch(fresh(batch.embeddings.to(second.device)), batch.labels.to(second.device))
        try:
            compute(component, there)
            second.clear()
            for info in compute(component, there).values():
                gradient(torch.as_tensor(info["losses"]).sum(), there.embeddings)
        except SkipCheck:
            raise
        except Exception as error:
            raise SkipCheck(f"it does not run on another device than the CPU, see check_devices: {error}") from None
    if second.waits:
        waits = in_words(second.waits)
        raise AssertionError(f"compute_loss, or its gradient, makes the host wait for the device: {waits}")


@applies_to("loss", "miner", "regularizer")
def check_tiles(subject: Subject) -> None:
    """In tiles of anchors, of whatever size, it gives what it gives of the whole matrix: value, gradient, indices.

    A class that says ``tiles = "rows"`` promises that the values of an anchor follow from its own row.
    """
    if getattr(subject.make(), "tile_size", 0) == 0 or getattr(subject.make(), "tiles", "rows") is None:
        raise SkipCheck("it has no tiles: no attribute tile_size")

    def outcome(batch: Batch, size: int) -> Tensor:
        component = subject.make()
        component.tile_size = size
        value = seeded(component, batch)
        parts = value if subject.kind == "miner" else (value.detach(), gradient(value, batch.embeddings))
        return torch.cat([part.double().flatten() for part in parts])

    ragged = torch.repeat_interleave(torch.arange(subject.classes), torch.arange(subject.classes) % 4 + 1)
    for batch in (batch_of(subject), batch_of(subject, ragged)):
        expected = outcome(batch, len(batch.labels))
        for size in (1, 3, 7):
            text = f"in tiles of {size} it has other values or gradients; an equation that looks at other anchors' rows"
            close(outcome(batch, size), expected, f"{text} has tiles = None", atol=1e-9)


@applies_to("loss", slow=True)
def check_gradient_caching(subject: Subject) -> None:
    """A network in micro-batches (``CachedGradients``) gets the gradients of the whole batch."""
    needs(subject, "labels", fixed=True)
    batch, outcomes = batch_of(subject), []
    for cached in (False, True):
        torch.manual_seed(0)
        network, loss = torch.nn.Linear(subject.size, subject.size).double(), subject.make()
        if cached:
            CachedGradients(network, loss, MICRO_BATCH)(batch.embeddings.detach(), batch.labels).backward()  # type: ignore[no-untyped-call]
        else:
            call(loss, Batch(network(batch.embeddings), batch.labels)).backward()
        named = (*network.named_parameters("network"), *loss.named_parameters("loss"))
        outcomes.append({name: parameter.grad for name, parameter in named})
    for name, wanted in outcomes[0].items():
        actual = outcomes[1][name]
        if (wanted is None) != (actual is None):
            raise AssertionError(f"{name} gets a gradient in the whole batch alone, or in micro-batches")
        if wanted is not None and actual is not None:
            close(actual, wanted, f"in micro-batches {name} gets another gradient", atol=1e-9)
