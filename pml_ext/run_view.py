"""What the components of a plugin see of a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@runtime_checkable
class RunView(Protocol):
    """The part of a run that a component's ``prepare``, ``start_epoch``, ``after_step`` and ``figures`` may use.

    ``splits`` have images without augmentation: ``"train"``; ``"test"``, or ``"query"`` and ``"gallery"``;
    ``"validation"`` if classes are held out; ``"train_sample"``, a sample of training images, unless all are tested.
    """

    folder: Path  # components write their own tables to records/ in it
    seed: int
    device: torch.device
    epoch: int  # from 1; 0 in prepare
    rank: int  # of this process; only process 0 writes files
    processes: int
    splits: dict[str, Any]  # images without augmentation, pml_ext.plugin.LabeledImages
    queries: str  # the split whose images a test searches for, "test" or "query"

    def embeddings(self, split: str, layer: Literal["embedder", "trunk"] = "embedder") -> Tensor:
        """Return the raw output of the network, or of its trunk, for all images of a split: ``[N, D]``, float32."""

    def batches(self, split: str, layer: Literal["embedder", "trunk"] = "embedder") -> Iterator[tuple[Tensor, Tensor]]:
        """Yield :meth:`embeddings` ``[B, D]`` and :meth:`labels` ``[B]`` batch by batch, so that memory is bounded."""

    def labels(self, split: str) -> Tensor:
        """Return the labels of a split, ``[N]``, int64, on the device.

        For ``"train"``, without labels of the data: the epoch's clusters, or the images' numbers.
        DataError where the data are listed pairs or triplets, which have no labels.
        """
