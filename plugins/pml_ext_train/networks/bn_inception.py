"""BN-Inception, which neither torchvision nor timm has."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MEAN = (104.0, 117.0, 128.0)  # BGR in 0 to 255, as its Caffe weights expect


class _Block(NamedTuple):
    """Channels of an inception block: 1 x 1 branch, two 3 x 3 branches, and projection."""

    single: int  # 0 for no branch, in a block that halves the image size
    reduce: int
    wide: int
    double_reduce: int
    double: int
    projection: int
    pool: Literal["mean", "max", "halve"] = "mean"


_BLOCKS = {
    "3a": _Block(64, 64, 64, 64, 96, 32),
    "3b": _Block(64, 64, 96, 64, 96, 64),
    "3c": _Block(0, 128, 160, 64, 96, 0, "halve"),
    "4a": _Block(224, 64, 96, 96, 128, 128),
    "4b": _Block(192, 96, 128, 96, 128, 128),
    "4c": _Block(160, 128, 160, 128, 160, 128),
    "4d": _Block(96, 128, 192, 160, 192, 128),
    "4e": _Block(0, 128, 192, 192, 256, 0, "halve"),
    "5a": _Block(352, 192, 320, 160, 224, 128),
    "5b": _Block(352, 192, 320, 192, 224, 128, "max"),
}


class BNInception(nn.Module):
    """BN-Inception (Ioffe and Szegedy, 2015), GoogLeNet with batch norms.

    Maps images ``[B, 3, S, S]`` to scores ``[B, num_classes]``. Parameters are named as in the known weights from Caffe
    (``bn_inception-52deb4733.pth``). ``pooling`` is that of the last 1,024 feature maps.
    """

    def __init__(self, num_classes: int = 1000, pooling: Literal["mean", "max"] = "mean") -> None:
        super().__init__()
        self.pooling = pooling
        self._add("conv1_7x7_s2", 3, 64, 7, 2)
        self._add("conv2_3x3_reduce", 64, 64, 1)
        self._add("conv2_3x3", 64, 192, 3)
        channels = 192
        for name, block in _BLOCKS.items():
            prefix = f"inception_{name}_"
            stride = 2 if block.pool == "halve" else 1
            if block.single:
                self._add(prefix + "1x1", channels, block.single, 1)
            self._add(prefix + "3x3_reduce", channels, block.reduce, 1)
            self._add(prefix + "3x3", block.reduce, block.wide, 3, stride)
            self._add(prefix + "double_3x3_reduce", channels, block.double_reduce, 1)
            self._add(prefix + "double_3x3_1", block.double_reduce, block.double, 3)
            self._add(prefix + "double_3x3_2", block.double, block.double, 3, stride)
            if block.projection:
                self._add(prefix + "pool_proj", channels, block.projection, 1)
            channels = block.single + block.wide + block.double + (block.projection or channels)
        self.last_linear: nn.Module = nn.Linear(channels, num_classes)

    def _add(self, name: str, inputs: int, outputs: int, size: int, stride: int = 1) -> None:
        self.add_module(name, nn.Conv2d(inputs, outputs, size, stride, size // 2))
        self.add_module(f"{name}_bn", nn.BatchNorm2d(outputs))

    def _unit(self, x: Tensor, *names: str) -> Tensor:
        """Apply convolutions, each with batch norm and ReLU."""
        for name in names:
            x = F.relu(self.get_submodule(f"{name}_bn")(self.get_submodule(name)(x)), inplace=True)
        return x

    def _block(self, x: Tensor, name: str, block: _Block) -> Tensor:
        prefix = f"inception_{name}_"
        double = prefix + "double_3x3_"
        branches = []
        if block.single:
            branches.append(self._unit(x, prefix + "1x1"))
        branches.append(self._unit(x, prefix + "3x3_reduce", prefix + "3x3"))
        branches.append(self._unit(x, double + "reduce", double + "1", double + "2"))
        if block.pool == "halve":
            branches.append(F.max_pool2d(x, 3, 2, ceil_mode=True))
        elif block.pool == "max":
            branches.append(self._unit(F.max_pool2d(x, 3, 1, 1), prefix + "pool_proj"))
        else:
            branches.append(self._unit(F.avg_pool2d(x, 3, 1, 1), prefix + "pool_proj"))
        return torch.cat(branches, 1)

    def extra_repr(self) -> str:
        """The setting that no parameter shows."""
        return f"pooling={self.pooling!r}"

    def forward(self, x: Tensor) -> Tensor:
        """Scores of classes, ``[B, num_classes]``."""
        x = F.max_pool2d(self._unit(x, "conv1_7x7_s2"), 3, 2, ceil_mode=True)
        x = F.max_pool2d(self._unit(x, "conv2_3x3_reduce", "conv2_3x3"), 3, 2, ceil_mode=True)
        for name, block in _BLOCKS.items():
            x = self._block(x, name, block)
        pooled = x.amax((2, 3)) if self.pooling == "max" else x.mean((2, 3))
        return self.last_linear(pooled)  # type: ignore[no-any-return]
