"""The radius of near copies, from altered copies of a sample of photographs."""

import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps

from pml_ext.errors import DataError
from pml_ext.evaluation import sample_indices
from pml_ext_train.data import read_image
from pml_ext_train.files import path_bytes
from pml_ext_train.retrieval import Vectors

from .near_pairs import Pairs
from .thumbnails import Thumbnails, thumbnail_of

SAMPLE = 32  # photographs that are copied and altered
HELD = 0.99  # fraction of altered copies that lie within the radius
OTHERS = 2.0  # images beyond this multiple of that distance are not copies
FRACTION = 1 / 3  # of the median distance to the nearest image that is not a copy
_SIDE = 512  # shorter side at which a large JPEG is decoded for altering
_LONGEST = 4096  # longer side of an altered image; WebP has at most 16,383 pixels


def _saved(image: Image.Image, kind: str, quality: int) -> Image.Image:
    file = io.BytesIO()
    image.save(file, kind, quality=quality)
    return Image.open(file)


def _cropped(image: Image.Image, lost: float, left: float, top: float) -> Image.Image:
    width = max(1, round(image.width * (1 - lost)))
    height = max(1, round(image.height * (1 - lost)))
    x = round((image.width - width) * left)
    y = round((image.height - height) * top)
    return image.crop((x, y, x + width, y + height))


CHANGES: tuple[Callable[[Image.Image], Image.Image], ...] = (
    lambda image: _saved(image, "JPEG", 50),
    lambda image: _saved(image, "JPEG", 30),
    lambda image: _saved(ImageOps.scale(image, 0.6, Image.Resampling.LANCZOS), "JPEG", 85),
    lambda image: _saved(image, "WEBP", 60),
    lambda image: _cropped(image, 0.05, 0.3, 0.8),
    lambda image: _cropped(image, 0.12, 0.6, 0.4),
    lambda image: ImageEnhance.Brightness(image).enhance(1.25),
    lambda image: ImageEnhance.Brightness(image).enhance(0.8),
)
"""What people do to photographs: compress, scale, crop, brighten and darken them."""


def chosen_radius(files: Sequence[Path], pairs: Pairs, count: int) -> tuple[float, int]:
    r"""The radius of near copies, and the number of altered copies that it comes from.

    .. math:: r = \sqrt{c \cdot \max(c, \tfrac{1}{3} o)}

    c is the 99th percentile of the altered copies' distances, and o the median distance of an image to the nearest one
    beyond 2 c, or 0 without any.

    *Cost:* reads 32 images of any collection.

    Args:
        files: of the collection; unreadable ones are left out.
        pairs: the nearest pairs among all images.
        count: the number of images.
    """
    by_path = sorted(files, key=lambda file: path_bytes(str(file)))  # however they were listed
    drawn = [by_path[number] for number in sample_indices(len(files), SAMPLE, seed=0).tolist()]
    distances = distances_of_copies(drawn)
    if not len(distances):
        return 0.0, 0
    held = float(np.quantile(distances, HELD))
    others = nearest_beyond(pairs, count, OTHERS * held)
    other = float(np.median(others)) if len(others) else 0.0
    return math.sqrt(held * max(held, FRACTION * other)), len(distances)


def distances_of_copies(files: Sequence[Path]) -> Vectors:
    """The distance of each altered copy from its photograph, without unreadable ones."""
    images = []
    for file in files:
        try:
            pixels = read_image(file, 3, smallest=_SIDE)
        except DataError:
            continue
        photograph = Image.fromarray(pixels.permute(1, 2, 0).numpy())
        photograph.thumbnail((_LONGEST, _LONGEST))
        images += [thumbnail_of(photograph), *(thumbnail_of(change(photograph)) for change in CHANGES)]
    if not images:
        return np.empty(0, dtype=np.float32)
    thumbnails = Thumbnails.of(torch.stack(images))
    family = 1 + len(CHANGES)
    copies = np.flatnonzero(np.arange(len(images)) % family)
    return thumbnails.distances(copies, copies // family * family)


def nearest_beyond(pairs: Pairs, count: int, distance: float) -> Vectors:
    """Distances of images to the nearest one beyond a distance, where there is one."""
    beyond = pairs.where(pairs.distances > distance)
    nearest = np.full(count, np.inf, dtype=np.float32)
    np.minimum.at(nearest, beyond.first, beyond.distances)
    np.minimum.at(nearest, beyond.second, beyond.distances)
    return nearest[np.isfinite(nearest)]
