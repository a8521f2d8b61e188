"""Transforms of training images: torchvision's own by name, and a list of them as one step."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pml_ext.errors import ConfigError, one_line

TRIALS = 8  # draws of random numbers with which transforms are tried before a run

# Classes of torchvision.transforms.v2 that do not turn one uint8 image into another of the same size.
_OTHERS = {
    *("CutMix", "MixUp"),  # of batches
    *("ClampBoundingBoxes", "ClampKeyPoints", "ConvertBoundingBoxFormat", "RandomIoUCrop", "SanitizeBoundingBoxes"),
    *("SanitizeKeyPoints", "SetClampingMode", "UniformTemporalSubsample"),  # of boxes, points and videos
    *("ConvertImageDtype", "PILToTensor", "ToDtype", "ToImage", "ToPILImage", "ToPureTensor", "ToTensor"),  # types
    *("LinearTransformation", "Normalize"),  # of floating-point images
    *("FiveCrop", "RandomResize", "RandomShortestSize", "RandomZoomOut", "ScaleJitter", "TenCrop"),  # sizes
    *("Identity", "Lambda", "Transform"),
}


def torchvision_transforms() -> dict[str, Callable[..., nn.Module]]:
    """Classes of ``torchvision.transforms.v2`` that map one image to one image, by name."""
    from torchvision.transforms import v2

    classes: list[tuple[str, Any]] = inspect.getmembers(v2, inspect.isclass)
    return {name: kind for name, kind in classes if issubclass(kind, v2.Transform) and name not in _OTHERS}


class NamedTransform(NamedTuple):
    """A transform of one image, and its key in a recipe."""

    key: str  # "data.augment.transforms.0"
    name: str
    text: str  # name and settings
    function: Callable[[Tensor], Tensor]


class ImageTransforms(nn.Module):
    """Transforms applied in turn to a copy of an image, uint8 ``[C, S, S]``."""

    def __init__(self, transforms: Sequence[NamedTransform]) -> None:
        super().__init__()
        self.transforms = list(transforms)

    def extra_repr(self) -> str:
        """Names and settings, which identify cached features of augmented images."""
        return "\n".join(transform.text for transform in self.transforms)

    def forward(self, image: Tensor) -> Tensor:
        """The transformed image; ConfigError if a transform fails or changes type or shape."""
        shape = image.shape
        image = image.clone(memory_format=torch.contiguous_format)
        for transform in self.transforms:
            try:
                image = transform.function(image)
            except Exception as error:  # of others' code
                reason = one_line(error) or type(error).__name__
                raise ConfigError(
                    f"{transform.key}: {transform.name} fails on a uint8 image of shape {list(shape)}: {reason}"
                ) from error
            if not isinstance(image, Tensor) or image.dtype != torch.uint8 or image.shape != shape:
                found = type(image).__name__
                if isinstance(image, Tensor):
                    found = f"{str(image.dtype).removeprefix('torch.')} {list(image.shape)}"
                raise ConfigError(
                    f"{transform.key}: {transform.name} returns {found}; it must return uint8 {list(shape)}"
                )
        return image.as_subclass(Tensor)

    def try_on(self, channels: int, image_size: int) -> None:
        """Apply the transforms to random images, so that errors show before a run."""
        with torch.random.fork_rng([]):
            torch.default_generator.manual_seed(0)  # of a GPU, fork_rng([]) would not put it back
            for _ in range(TRIALS):
                self(torch.randint(256, (channels, image_size, image_size), dtype=torch.uint8))
