"""Transforms of training images by name: torchvision's own, and a list of them as a step of preprocessing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pml_ext.errors import ConfigError, one_line

TRIALS = 8  # draws of random numbers with which transforms are tried before a run

# Classes of torchvision.transforms.v2 that do not turn one uint8 image into another of the same size.
_OF_BATCHES = ("CutMix", "MixUp")
_OF_OTHER_DATA = (
    "ClampBoundingBoxes",
    "ClampKeyPoints",
    "ConvertBoundingBoxFormat",
    "RandomIoUCrop",
    "SanitizeBoundingBoxes",
    "SanitizeKeyPoints",
    "SetClampingMode",
    "UniformTemporalSubsample",
)
_OF_TYPES = ("ConvertImageDtype", "PILToTensor", "ToDtype", "ToImage", "ToPILImage", "ToPureTensor", "ToTensor")
_OF_FLOATS = ("LinearTransformation", "Normalize")
_OF_SIZES = ("FiveCrop", "RandomResize", "RandomShortestSize", "RandomZoomOut", "ScaleJitter", "TenCrop")
_OTHERS = {*_OF_BATCHES, *_OF_OTHER_DATA, *_OF_TYPES, *_OF_FLOATS, *_OF_SIZES, "Identity", "Lambda", "Transform"}


def torchvision_transforms() -> dict[str, Callable[..., nn.Module]]:
    """Return the transforms of ``torchvision.transforms.v2`` that take and give one image, by their classes' names."""
    from torchvision.transforms import v2

    found: dict[str, Callable[..., nn.Module]] = {}
    for name in dir(v2):
        value = getattr(v2, name)
        if isinstance(value, type) and issubclass(value, v2.Transform) and name not in _OTHERS:
            found[name] = value
    return found


class NamedTransform(NamedTuple):
    """A transform of one image, with its place in a recipe."""

    key: str  # "data.augment.transforms.0"
    name: str
    text: str  # name and settings
    function: Callable[[Tensor], Tensor]


class ImageTransforms(nn.Module):
    """Transforms of an image, one after the other, each from uint8 ``[C, S, S]`` to the same type and shape.

    They get a copy of the image, which may be one of a data set in memory, and draw from torch's generator.
    """

    def __init__(self, transforms: Sequence[NamedTransform]) -> None:
        super().__init__()
        self.transforms = list(transforms)

    def extra_repr(self) -> str:
        """Return names and settings, which distinguish cached features of augmented images."""
        return "\n".join(transform.text for transform in self.transforms)

    def forward(self, image: Tensor) -> Tensor:
        """Return the transformed image; ConfigError for a transform that fails, or gives another type or shape."""
        shape = image.shape
        image = image.clone(memory_format=torch.contiguous_format)
        for transform in self.transforms:
            try:
                image = transform.function(image)
            except Exception as error:  # of others' code
                reason = one_line(error) or type(error).__name__
                raise ConfigError(
                    f"{transform.key}: {transform.name} refuses a uint8 image of shape {list(shape)}: {reason}"
                ) from error
            if not isinstance(image, Tensor) or image.dtype != torch.uint8 or image.shape != shape:
                found = type(image).__name__
                if isinstance(image, Tensor):
                    found = f"{str(image.dtype).removeprefix('torch.')} {list(image.shape)}"
                raise ConfigError(f"{transform.key}: {transform.name} gives {found}; wanted uint8 {list(shape)}")
        return image.as_subclass(Tensor)

    def try_on(self, channels: int, image_size: int) -> None:
        """Call the transforms with random numbers on random images; ConfigError as in a run."""
        with torch.random.fork_rng([]):
            torch.default_generator.manual_seed(0)  # of a GPU, fork_rng([]) would not put it back
            for _ in range(TRIALS):
                self(torch.randint(256, (channels, image_size, image_size), dtype=torch.uint8))
