"""The embeddings of a whole split, computed in one pass of the network that all who need them share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from ..devices import Precision, autocast
from ..pairwise import to_full_precision
from .batches import Watched, begin


@dataclass(frozen=True)
class EmbeddedSplit:
    """The embeddings of a split, in its order.

    Args:
        embeddings: ``[N, D]``, float32 or float64, not normalized.
        labels: ``[N]``, int64.
        also: what else was computed of the images, ``[N, ...]``, or None.
    """

    embeddings: Tensor
    labels: Tensor
    also: Tensor | None = None


@torch.no_grad()
def embed_batches(
    trunk: nn.Module,
    embedder: nn.Module,
    images: Dataset[tuple[Tensor, int]],
    device: torch.device,
    batch_size: int = 256,
    workers: int = 0,
    precision: Precision = "float32",
    look: Callable[[Tensor], None] = lambda _: None,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield a split batch by batch: features ``[B, F]``, embeddings ``[B, D]`` and labels ``[B]``, on the device.

    Both modules are in evaluation mode for each batch, and as they were when the pass ends. Torch's generators are left
    alone.

    Args:
        trunk: from images to features.
        embedder: from features to embeddings.
        images: items are ``(image, label)``.
        device: where both modules are.
        batch_size: images at a time.
        workers: processes that read; 0 for this one.
        precision: of the network.
        look: called with each batch of images, ``[B, C, H, W]``, on the device.
    """
    pinned = device.type in ("cuda", "xpu")
    watched = Watched(images, workers)
    loader: DataLoader[Any] = DataLoader(
        watched, batch_size, num_workers=workers, pin_memory=pinned, generator=torch.Generator(), worker_init_fn=begin
    )
    modes = {module: module.training for network in (trunk, embedder) for module in network.modules()}
    try:
        with watched.naming_images():
            for batch, labels in loader:
                trunk.eval()
                embedder.eval()
                batch = watched.finish(batch.to(device, non_blocking=pinned))
                look(batch)
                with autocast(device, precision):
                    features = trunk(batch)
                    embeddings = embedder(features)
                yield to_full_precision(features), to_full_precision(embeddings), labels.to(device, non_blocking=pinned)
    finally:
        for module, training in modes.items():
            module.training = training


def embed_split(
    trunk: nn.Module,
    embedder: nn.Module,
    images: Dataset[tuple[Tensor, int]],
    device: torch.device,
    batch_size: int = 256,
    workers: int = 0,
    precision: Precision = "float32",
    also: Callable[[Tensor], Tensor] | None = None,
) -> EmbeddedSplit:
    """Return a whole split, embedded in one pass; arguments as of :func:`embed_batches`.

    ``also`` computes something else of each batch of images, ``[B, ...]`` of ``[B, C, H, W]``.
    """
    count = len(images)  # type: ignore[arg-type]
    held: dict[str, Tensor] = {}
    seen: list[Tensor] = []
    start = 0
    look = seen.append if also is not None else lambda _: None
    passing = embed_batches(trunk, embedder, images, device, batch_size, workers, precision, look)
    for _, embeddings, labels in passing:
        parts = {"embeddings": embeddings, "labels": labels}
        if also is not None:
            parts["also"] = also(seen.pop())
        if not held:  # filled in place: joining the batches at the end would hold everything twice
            held = {name: part.new_empty(count, *part.shape[1:]) for name, part in parts.items()}
        for name, part in parts.items():
            held[name][start : start + len(part)] = part
        start += len(labels)
    return EmbeddedSplit(**held)
