"""Training on activations of a trunk's frozen first part, which are computed once."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from pml_ext.errors import ConfigError, counted

from ..networks import Preprocessing, activation_shape, frozen_stem
from ..recipe.schema import CutTable

GIGABYTE = 10**9
Precision = Literal["float16", "float32"]
DTYPES: dict[Precision, type[np.floating[Any]]] = {"float16": np.float16, "float32": np.float32}


@dataclass(frozen=True, eq=False)
class TrunkCut:
    """The two parts of a cut trunk, and the shape of the activations between them."""

    table: CutTable
    stem: nn.Module  # frozen: images [B, C, S, S] to activations [B, *shape]
    rest: nn.Module  # trained: activations to features [B, F]
    shape: torch.Size

    @property
    def bytes_per_image(self) -> int:
        """Size of the activations of one view of an image."""
        return self.bytes_in(self.table.precision)

    def bytes_in(self, precision: Precision) -> int:
        """Size of one view's activations in a precision."""
        return math.prod(self.shape) * np.dtype(DTYPES[precision]).itemsize


def cut_trunk(trunk: nn.Module, table: CutTable, preprocessing: Preprocessing, device: torch.device) -> TrunkCut:
    """Cut a trunk and freeze its first part; ConfigError if there is no such block."""
    parts = frozen_stem(trunk, table.until)
    shape = activation_shape(parts.stem, preprocessing.channels, preprocessing.image_size, device)
    return TrunkCut(table, parts.stem, parts.rest, shape)


def size_of(cut: TrunkCut, images: int, views: int, others: int = 0) -> int:
    """Bytes of the activations of images in some views, and of other images."""
    return (images * views + others) * cut.bytes_per_image


def check_size(cut: TrunkCut, images: int, views: int, others: int) -> str:
    """Describe the size of the activations; ConfigError above the recipe's limit."""
    size = size_of(cut, images, views, others)
    each = f"{in_units(cut.bytes_per_image)} in {cut.table.precision}"
    kept = f"{counted(images, 'image')} x {counted(views, 'view')} x {each}"
    if others:
        kept += f", and {others:,} validation images"
    if size > cut.table.gigabytes * GIGABYTE:
        raise ConfigError(
            f"model.freeze: activations need {in_units(size)} ({kept}), above {cut.table.gigabytes:g} GB. Cut at a "
            f"later block, use fewer model.views, or type --set model.freeze.gigabytes={math.ceil(size / GIGABYTE)}"
        )
    return f"the activations before {cut.table.until} need {in_units(size)} ({kept})"


def in_units(size: float) -> str:
    """Return a size as text: 22 KB, 1.4 GB."""
    for unit, name in ((GIGABYTE, "GB"), (10**6, "MB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size / 1000:.3g} KB"
