"""A run as the components of a plugin see it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@runtime_checkable
class RunView(Protocol):
    """The part of a run that a component's hooks may use.

    Splits are ``"train"``; ``"test"``, or ``"query"`` and ``"gallery"``; ``"validation"`` if classes are held out;
    ``"train_sample"``, unless all training images are tested.
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
        """Raw output of the network or trunk for a split: ``[N, D]``, float32."""

    def batches(self, split: str, layer: Literal["embedder", "trunk"] = "embedder") -> Iterator[tuple[Tensor, Tensor]]:
        """Yield embeddings ``[B, D]`` and labels ``[B]`` batch by batch."""

    def labels(self, split: str) -> Tensor:
        """The labels of a split, ``[N]``, int64, on the device.

        Without labels, ``"train"`` has the epoch's clusters or the images' numbers. Listed pairs and triplets raise
        DataError.
        """
