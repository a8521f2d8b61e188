"""Image files become tensors: upright, of the wanted channels, cut to a box, and read small where that is enough."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError, PmlExtError, one_line

# What Pillow may take a file for, whatever its name; others start programs (an EPS starts Ghostscript).
FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "PPM", "GIF")
ORIENTATION = 0x0112  # tag of EXIF


class Box(NamedTuple):
    """A part of an image in pixels: from ``left`` and ``top`` up to, not including, ``right`` and ``bottom``."""

    left: float
    top: float
    right: float
    bottom: float


def read_image(path: Path, channels: int = 3, box: Box | None = None, smallest: int | None = None) -> Tensor:
    """Return an image file as uint8 ``[C, H, W]``, turned upright as its EXIF data say, transparency on white.

    16-bit images are scaled to 8 bits, CMYK and palettes are converted. Pillow decodes JPEGs at a half, a quarter or an
    eighth of their size, and with the channels last, which resizing is fast on.

    Args:
        path: the file.
        channels: 1 (gray) or 3 (color).
        box: the wanted part of the upright image; pixels outside the image are left out.
        smallest: pixels that the shorter side may be reduced to: JPEGs are decoded at a fraction of their size. None
            reads every pixel.

    Raises:
        DataError: the file is missing, no image, or broken, or the box has no pixel of it; the text has the path.
    """
    from PIL import Image

    try:
        with Image.open(path, formats=FORMATS) as file:
            image: Any = file
            size = _upright_size(image)
            if smallest is not None:
                _draft(image, smallest, min(size) if box is None else min(_inside(box, size, path)[2:]))
            image = _in_8_bits(_upright(image))
            if box is not None:
                factor = image.width / size[0]  # of a draft
                left, top, width, height = _inside(box, size, path)
                corners = left * factor, top * factor, (left + width) * factor, (top + height) * factor
                image = image.crop((*map(math.floor, corners[:2]), *map(math.ceil, corners[2:])))
            return _pixels(image, channels)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; put it back, or take it out of the list of images") from None
    except PmlExtError:
        raise
    except Exception as error:  # decoders raise errors of many kinds, struct.error and TypeError among them
        raise DataError(f"{path}: not a readable image ({one_line(error)}); mend or remove the file") from None


def image_tensor(image: Any, channels: int = 3) -> Tensor:
    """Return a PIL image as uint8 ``[C, H, W]``, upright, transparency on white, 1 or 3 channels."""
    return _pixels(_in_8_bits(_upright(image)), channels)


def _upright(image: Any) -> Any:
    """Return the image turned as its orientation tag says, the only part of EXIF that is looked at."""
    from PIL.Image import Transpose

    image.load()  # a TIFF file is turned by that
    orientation = image.getexif().get(ORIENTATION)
    names = ("FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_270", "TRANSVERSE", "ROTATE_90")
    if orientation not in range(2, 9):
        return image
    return image.transpose(Transpose[names[int(orientation) - 2]])


def _in_8_bits(image: Any) -> Any:
    from PIL import Image

    if image.mode.startswith("I"):  # 16 bits, as "I;16" or in an "I": PIL would clip, not scale
        return Image.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8))
    return image


def _pixels(image: Any, channels: int) -> Tensor:
    from PIL import Image

    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    mode = "L" if channels == 1 else "RGB"
    pixels = np.array(image if image.mode == mode else image.convert(mode))
    return torch.from_numpy(pixels).reshape(*pixels.shape[:2], channels).permute(2, 0, 1)


def _upright_size(image: Any) -> tuple[int, int]:
    """Return width and height of the upright image."""
    turned = image.getexif().get(ORIENTATION) in (5, 6, 7, 8)
    return (image.height, image.width) if turned else (image.width, image.height)


def _draft(image: Any, smallest: int, shorter: int) -> None:
    """Make Pillow decode a JPEG at the smallest fraction that leaves ``smallest`` pixels of a part's shorter side."""
    factor = smallest / shorter
    if factor < 1:
        image.draft(None, (math.ceil(image.width * factor), math.ceil(image.height * factor)))


def _inside(box: Box, size: tuple[int, int], path: Path) -> tuple[int, int, int, int]:
    """Return left, top, width and height of a box's whole pixels inside an image."""
    left, top = max(0, math.floor(box.left)), max(0, math.floor(box.top))
    right, bottom = min(size[0], math.ceil(box.right)), min(size[1], math.ceil(box.bottom))
    if right <= left or bottom <= top:
        corners = ", ".join(f"{number:g}" for number in box)
        raise DataError(f"{path}: its box ({corners}) has no pixel of the {size[0]} x {size[1]} image; mend the box")
    return left, top, right - left, bottom - top
