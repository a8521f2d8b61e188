"""The embeddings of a whole split, computed in one pass of the network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from .batches import Watched, begin


@dataclass(frozen=True)
class EmbeddedSplit:
    """The embeddings of a split, in its order."""

    embeddings: Tensor  # [N, D], not normalized
    labels: Tensor  # [N], int64
    also: Tensor | None = None  # what else was computed of the images, [N, ...]


@torch.no_grad()
def embed_batches(
    trunk: nn.Module,
    embedder: nn.Module,
    images: Dataset[tuple[Tensor, int]],
    device: torch.device,
    batch_size: int = 256,
    workers: int = 0,
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Yield a split batch by batch: images, features ``[B, F]``, embeddings ``[B, D]`` and labels, on the device.

    Both modules are in evaluation mode for each batch, and as they were when the pass ends. Torch's generators are left
    alone. Arguments as of :func:`embed_split`.
    """
    pinned = device.type in ("cuda", "xpu")
    watched = Watched(images, workers)
    loader = DataLoader(
        watched, batch_size, num_workers=workers, pin_memory=pinned, generator=torch.Generator(), worker_init_fn=begin
    )
    modes = {module: module.training for network in (trunk, embedder) for module in network.modules()}
    try:
        with watched.naming_images():
            for batch, labels in loader:
                trunk.eval()
                embedder.eval()
                batch = watched.finish(batch.to(device, non_blocking=pinned))
                features = trunk(batch)
                yield batch, features, embedder(features), labels.to(device, non_blocking=pinned)
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
    also: Callable[[Tensor], Tensor] | None = None,
) -> EmbeddedSplit:
    """Return a whole split, embedded in one pass.

    Args:
        trunk: from images to features.
        embedder: from features to embeddings.
        images: items are ``(image, label)``.
        device: where both modules are.
        batch_size: images at a time.
        workers: processes that read; 0 for this one.
        also: computes something else of each batch of images, ``[B, ...]`` of ``[B, C, H, W]``.
    """
    count, start = len(images), 0  # type: ignore[arg-type]
    held: dict[str, Tensor] = {}
    for batch, _, embeddings, labels in embed_batches(trunk, embedder, images, device, batch_size, workers):
        parts = {"embeddings": embeddings, "labels": labels} | ({"also": also(batch)} if also is not None else {})
        for name, part in parts.items():  # filled in place: joining the batches at the end would hold everything twice
            if name not in held:
                held[name] = part.new_empty(count, *part.shape[1:])
            held[name][start : start + len(part)] = part
        start += len(labels)
    return EmbeddedSplit(**held)
