"""Read image files as tensors: EXIF rotation, channels, crop box, and reduced-size JPEG decoding."""

from __future__ import annotations

import math
import os
import stat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError, PmlExtError, one_line

# Formats that Pillow may detect; others run programs (EPS runs Ghostscript).
FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "PPM", "GIF")
ORIENTATION = 0x0112  # EXIF tag
TURNS = ("FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_270", "TRANSVERSE", "ROTATE_90")


class Box(NamedTuple):
    """A part of an image in pixels: from ``left`` and ``top`` up to, not including, ``right`` and ``bottom``."""

    left: float
    top: float
    right: float
    bottom: float


def read_image(path: Path, channels: int = 3, box: Box | None = None, smallest: int | None = None) -> Tensor:
    """Return an image file as uint8 ``[C, H, W]``, rotated by its EXIF orientation, transparency blended with white.

    16-bit images are scaled to 8 bits; CMYK and palettes are converted. The memory format is channels-last. ``box``
    crops the upright image. JPEGs are decoded at 1/2, 1/4 or 1/8 of their size if the shorter side keeps at least
    ``smallest`` pixels. Raise DataError if the file cannot be read or the box lies outside of the image.
    """
    from PIL import Image

    try:
        if isinstance(path, (str, Path)) and not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would never end
            raise DataError(f"{path}: not a regular file; wanted an image")
        with Image.open(path, formats=FORMATS) as file:
            if file.mode == "F":  # PIL would clip, to black where values are from 0 to 1
                raise DataError(f"{path}: its pixels are floating-point numbers; save it with 8 or 16 bits a channel")
            turned = file.getexif().get(ORIENTATION) in (5, 6, 7, 8)
            width, height = file.size[::-1] if turned else file.size
            if box is None:
                part = Box(0, 0, width, height)
            else:
                part = _whole_pixels(box, width, height, path)
            shorter = min(part.right - part.left, part.bottom - part.top)
            if smallest is not None and smallest < shorter:
                sides = [math.ceil(side * smallest / shorter) for side in file.size]
                file.draft(None, (sides[0], sides[1]))
            image = _upright(file)
            if box is not None:
                image = image.crop(_scaled(part, (width, height), image.size))  # the draft may be smaller
            return _pixels(image, channels)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; put it back, or take it out of the list of images") from None
    except PmlExtError:
        raise
    except Exception as error:  # decoders raise many types, such as struct.error and TypeError
        raise DataError(f"{path}: not a readable image ({one_line(error)}); mend or remove the file") from None


def _whole_pixels(box: Box, width: int, height: int, path: Path) -> Box:
    """Return the smallest box of whole pixels around a box, inside of the image; DataError if there is none."""
    left = max(0, math.floor(box.left))
    top = max(0, math.floor(box.top))
    right = min(width, math.ceil(box.right))
    bottom = min(height, math.ceil(box.bottom))
    if right <= left or bottom <= top:
        corners = ", ".join(f"{number:g}" for number in box)
        raise DataError(f"{path}: its box ({corners}) lies outside of the {width} x {height} image; mend the box")
    return Box(left, top, right, bottom)


def _scaled(box: Box, before: tuple[int, int], after: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom of a box, once an image of one size (width, height) has another.

    Both sides are rounded when an image is decoded small, so that each has a factor of its own.
    """
    return (
        math.floor(box.left * after[0] / before[0]),
        math.floor(box.top * after[1] / before[1]),
        math.ceil(box.right * after[0] / before[0]),
        math.ceil(box.bottom * after[1] / before[1]),
    )


def image_tensor(image: Any, channels: int = 3) -> Tensor:
    """Return a PIL image as uint8 ``[C, H, W]``, upright, transparency on white, 1 or 3 channels."""
    return _pixels(_upright(image), channels)


def _upright(image: Any) -> Any:
    """Return the image in 8 bits, rotated by its EXIF orientation; other EXIF data are ignored."""
    from PIL import Image

    image.load()  # loading rotates a TIFF file
    orientation = image.getexif().get(ORIENTATION)
    if orientation in range(2, 9):
        image = image.transpose(Image.Transpose[TURNS[int(orientation) - 2]])
    if image.mode.startswith("I"):  # 16 bits, in mode "I;16" or "I": PIL would clip, not scale
        return Image.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8))
    return image


def _pixels(image: Any, channels: int) -> Tensor:
    from PIL import Image

    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    mode = "L" if channels == 1 else "RGB"
    if image.mode != mode:
        image = image.convert(mode)
    pixels = np.array(image)
    return torch.from_numpy(pixels).reshape(*pixels.shape[:2], channels).permute(2, 0, 1)
