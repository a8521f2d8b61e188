"""Batches of an epoch: each process's part, augmentation seeds, and images."""

import operator
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import BatchSampler, Dataset

from pml_ext.distributed import from_rank_0, num_processes, rank
from pml_ext.distributed.processes import share_of
from pml_ext.errors import TrainingError
from pml_ext.pairwise import ListedTuples

from ..networks.modes import evaluation_mode
from .loader import Item, WorkerDataset, data_loader

Batches = list[list[Item]]
Indices = tuple[Tensor, ...]  # the indices_tuple of a batch


class Batch(NamedTuple):
    """A training batch, with labels or the indices of listed tuples."""

    images: Tensor
    labels: Tensor | None = None
    indices_tuple: Indices | None = None


class Pass(NamedTuple):
    """A forward pass in a test: features ``[B, F]``, embeddings ``[B, D]``, labels ``[B]``."""

    images: Tensor | None  # None where features or activations are kept
    features: Tensor
    embeddings: Tensor
    labels: Tensor


def draw(sampler: Any, batch_size: int, iterations: int) -> list[list[int]]:
    """Return the first batches of one pass of a sampler, or the numbers of listed tuples.

    Raises TrainingError for too few batches or invalid indices.
    """
    if _listed(sampler) is not None:
        return [batch.tuples for batch in islice(sampler, iterations)]
    batches = sampler if isinstance(sampler, BatchSampler) else BatchSampler(sampler, batch_size, drop_last=True)
    drawn = [_indices(sampler, batch) for batch in islice(batches, iterations)]
    if len(drawn) < iterations:
        raise TrainingError(
            f"one pass of {type(sampler).__name__} gave {len(drawn)} batches of {batch_size} images instead "
            f"of {iterations}; yield as many as len() says, or lower iterations"
        )
    return drawn


def _indices(sampler: Any, batch: Iterable[Any]) -> list[int]:
    try:
        indices = list(map(operator.index, batch))
    except TypeError as error:
        raise TrainingError(f"{type(sampler).__name__} must give indices of images; {error}") from error
    if min(indices, default=0) < 0:
        raise TrainingError(f"{type(sampler).__name__} must give indices of images, from 0; it gave {min(indices)}")
    return indices


def _listed(sampler: Any) -> ListedTuples | None:
    """The tuples of a sampler of listed pairs or triplets."""
    tuples = getattr(sampler, "tuples", None)
    return tuples if isinstance(tuples, ListedTuples) else None


def draw_for_all(
    sampler: Any, batch_size: int, iterations: int, seed: int, epoch: int, views: int = 1
) -> tuple[Batches, list[Indices] | None]:
    """Return the epoch's batches as drawn by rank 0, and the tuples' ``indices_tuple``.

    Other ranks seed torch's generator differently.
    """
    drawn = draw(sampler, batch_size, iterations) if rank() == 0 else None
    if rank() > 0:
        torch.manual_seed(hash((seed, epoch, rank())))
    joined = from_rank_0(drawn)
    indices = None
    tuples = _listed(sampler)
    if tuples is not None:
        of_tuples = [tuples.batch(numbers) for numbers in joined]
        joined = [batch.items for batch in of_tuples]
        indices = [batch.indices_tuple for batch in of_tuples]
    processes = num_processes()
    fewest = min(map(len, joined), default=processes) * views
    if fewest < processes:
        raise TrainingError(
            f"a batch of {fewest} images is too small for {processes} processes; set sampler.batch_size to "
            f"{processes} or more"
        )
    return epoch_batches(joined, seed, epoch, rank(), processes, views), indices


def with_indices(reading: Iterable[Batch], indices: Sequence[Indices] | None, device: torch.device) -> Iterator[Batch]:
    """Replace the labels of batches by an ``indices_tuple``, if given."""
    if indices is None:
        yield from reading
        return
    for batch, indices_tuple in zip(reading, indices, strict=True):
        yield Batch(batch.images, indices_tuple=tuple(index.to(device) for index in indices_tuple))


def epoch_batches(
    joined: list[list[int]], seed: int, epoch: int, rank: int = 0, processes: int = 1, views: int = 1
) -> Batches:
    """Return one process's part of an epoch's batches: part r of W consecutive ones for rank r.

    Each image appears ``views`` times in a row. Its augmentation seed depends on seed, epoch, place and view, never on
    processes or workers; consecutive seeds select different cached views.
    """
    generator = np.random.default_rng((seed, epoch))
    seeds = iter(generator.integers(2**63 - (views - 1), size=sum(map(len, joined))).tolist())
    batches = []
    for images in joined:
        whole: list[Item] = []
        for image in images:
            first_seed = next(seeds)
            whole.extend((image, first_seed + view) for view in range(views))
        batches.append(whole[share_of(len(whole), rank, processes)])
    return batches


def indices_of(batch: list[Item]) -> Tensor:
    """Return the images of a batch, ``[B]``, int64."""
    return torch.tensor([index for index, _ in batch], dtype=torch.int64)


class BatchReader:
    """Reader of epochs' batches, with worker processes that persist."""

    def __init__(
        self,
        images: Dataset[tuple[Tensor, int]],
        workers: int,
        device: torch.device,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> None:
        self._device = device
        self._memory_format = memory_format
        self._now: Batches = []  # the batches that the loader reads next
        self.images = WorkerDataset(images, workers)
        self.naming_images = self.images.naming_images
        self._loader = data_loader(
            self.images, workers, device, batch_sampler=self._now, persistent_workers=workers > 0
        )

    def read(self, batches: Batches, labels: NDArray[np.int64] | None = None) -> Iterator[Batch]:
        """Iterate over batches on the device: images ``[B, C, H, W]`` and labels ``[B]``.

        ``labels`` ``[N]`` replace the images' own. Draws one number from torch's generator.
        """
        self._loader.generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_()))
        self._now[:] = batches
        pinned = self._loader.pin_memory

        def on_device(number: int, images: Tensor, own: Tensor) -> Batch:
            if labels is not None:
                own = torch.from_numpy(labels[indices_of(batches[number]).numpy()])
            images = images.to(self._device, non_blocking=pinned, memory_format=self._memory_format)
            return Batch(self.images.finish(images), own.to(self._device, non_blocking=pinned))

        return (on_device(number, *batch) for number, batch in enumerate(self._loader))

    def close(self) -> None:
        """Terminate the workers."""
        del self._loader


@torch.no_grad()
def embed_batches(
    trunk: nn.Module,
    embedder: nn.Module,
    images: Dataset[tuple[Tensor, int]],
    device: torch.device,
    batch_size: int = 256,
    workers: int = 0,
    batches: Batches | None = None,
) -> Iterator[Pass]:
    """Yield the forward passes of all images, or of ``batches``, in evaluation mode."""
    dataset = WorkerDataset(images, workers)
    drawn: dict[str, Any] = {"batch_size": batch_size} if batches is None else {"batch_sampler": batches}
    loader = data_loader(dataset, workers, device, **drawn)
    with evaluation_mode(trunk, embedder), dataset.naming_images():
        for batch, labels in loader:
            trunk.eval()
            embedder.eval()
            batch = dataset.finish(batch.to(device, non_blocking=loader.pin_memory))
            features = trunk(batch)
            labels = labels.to(device, non_blocking=loader.pin_memory)
            yield Pass(batch, features, embedder(features), labels)
