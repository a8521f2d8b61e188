"""What a component costs: memory, saved bytes, operators, waits for the device."""

from __future__ import annotations

import torch
from torch import Tensor

from ...benchmark import peak_bytes
from ..calling import call, compute
from ..probes import CountedOperations, SavedBytes
from ..second_device import SecondDevice, in_words
from ..subject import Batch, SkipCheck, Subject, batch_of, fresh, labels_of

MATRICES = 64  # of B x B, that a component may keep for the backward pass
MATRICES_OF_TILES = 4  # that a distance in tiles may, which gives one


def check_memory_growth(subject: Subject) -> None:
    """Memory that grows with the cube of the batch ends at a few hundred images; quadratic or better is wanted."""
    loss, peaks = subject.make().float(), []
    for batch in _growing(subject, 24):
        peaks.append(peak_bytes(lambda x, y: call(loss, Batch(x, y)), batch.embeddings, batch.labels))
    if peaks[1] > 5.5 * peaks[0] and peaks[1] > 1 << 20:
        raise AssertionError(
            f"twice the batch takes {peaks[1] / peaks[0]:.1f} times the memory "
            f"({peaks[1] >> 10} KiB); form no triplets, or work in tiles"
        )


def _growing(subject: Subject, classes: int, factor: int = 2) -> list[Batch]:
    """A batch of some classes x 4, and a larger one; of more images per class where classes are parameters."""
    if any(True for _ in subject.make().parameters()):
        each = 4 * classes // subject.classes
        return [batch_of(subject, (subject.classes, size), torch.float32) for size in (each, factor * each)]
    batches = []
    for count in (classes, factor * classes):
        batch = batch_of(subject, torch.arange(4 * count) % subject.classes, torch.float32)
        batches.append(Batch(batch.embeddings, labels_of((count, 4))))
    return batches


def check_saved_bytes(subject: Subject) -> str:
    """What autograd keeps until the backward pass is memory that the network lacks; "tiles" promises that it is little.

    It may be a few matrices of ``B x B``. A loss that says it has ``"tiles"`` computes them again in the backward pass,
    so that what it keeps grows as the batch does; a distance, whose value is such a matrix, keeps hardly more.
    """
    tiles, distance = "tiles" in subject.capabilities, subject.kind == "distance"
    factor = 4 if tiles else 2
    sizes, saved = [], []
    for batch in _growing(subject, 48 if tiles else 24, factor):
        component = subject.make().float()
        with SavedBytes(batch.embeddings, batch.labels, *component.parameters(), *component.buffers()) as counted:
            value = call(component, batch)
        counted.leave_out(value)
        sizes.append(len(batch.labels))
        saved.append(counted.total)
    growth, matrices = saved[1] / max(1, saved[0]), saved[1] / (4 * sizes[1] ** 2)
    what = f"a batch of {sizes[1]} has {saved[1] >> 10} KiB saved for the backward pass"
    if tiles and not distance and growth > 1.5 * factor and saved[1] > 1 << 20:
        raise AssertionError(
            f"{what}, {growth:.1f} times as many as for a batch of {sizes[0]}, although it says "
            "that it has tiles; compute them again in the backward pass, by "
            "torch.utils.checkpoint.checkpoint(..., use_reentrant=False)"
        )
    if matrices > (MATRICES_OF_TILES if tiles and distance else MATRICES):
        raise AssertionError(
            f"{what}, as much as {matrices:.0f} matrices of B x B; work in tiles that the backward pass computes again"
        )
    return f"{what}, {matrices:.1f} matrices of B x B"


def check_no_loop_over_anchors(subject: Subject) -> None:
    """A Python loop over anchors launches operators for each; on a GPU that is what training waits for."""
    counts = []
    for batch in _growing(subject, 12):
        loss = subject.make().float()
        with CountedOperations() as counted:
            call(loss, batch)
        counts.append(counted.count)
    if counts[1] > 1.7 * counts[0]:
        raise AssertionError(
            f"twice the batch takes {counts[1] / counts[0]:.1f} times as many operators "
            f"({counts[0]}, then {counts[1]}): a loop over images; use whole matrices"
        )


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
            actual = compute(component, there)
            for info in actual.values():
                if isinstance(info["losses"], Tensor) and info["losses"].requires_grad:
                    torch.autograd.grad(info["losses"].sum(), there.embeddings, retain_graph=True, allow_unused=True)
        except SkipCheck:
            raise
        except Exception as error:
            raise SkipCheck(f"it does not run on another device than the CPU, see check_devices: {error}") from None
    if second.waits:
        raise AssertionError(
            f"compute_loss, or its gradient, makes the host wait for the device: "
            f"{in_words(second.waits)}; keep what it needs in tensors"
        )
