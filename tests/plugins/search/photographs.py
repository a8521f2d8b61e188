"""Made-up photographs and their copies."""

import numpy as np
import torch
from PIL import Image, ImageEnhance


def photograph(number, side=160):
    """A smooth image in colors, another one for each number."""
    small = np.random.default_rng(number).integers(256, size=(6, 8, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((side * 4 // 3, side), Image.Resampling.BICUBIC)


def write_photographs(place, count, side):
    """Write photographs into a new flat folder, and return the folder."""
    place.mkdir()
    for number in range(count):
        photograph(number, side).save(place / f"{number}.png")
    return place


def write_copies(place, number):
    """Write a photograph and seven changes of it."""
    place.mkdir(parents=True, exist_ok=True)
    image = photograph(number)
    name = f"{number:02d}"
    for change, changed, options in (
        ("original.png", image, {}),
        ("75.jpg", image, {"quality": 75}),
        ("40.jpg", image, {"quality": 40}),
        ("half.png", image.resize((106, 80)), {}),
        ("webp.webp", image, {"quality": 80}),
        ("crop.png", image.crop((3, 2, 210, 158)), {}),
        ("brighter.png", ImageEnhance.Brightness(image).enhance(1.2), {}),
        ("doubled.png", image.resize((426, 320)), {}),
    ):
        changed.save(place / f"{name}-{change}", **options)


def stacked(tensors):
    """Tensors of one shape as one."""
    return torch.stack(tensors)
