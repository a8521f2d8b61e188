"""Made-up photographs and their copies."""

import numpy as np
import torch
from PIL import Image, ImageEnhance


def photograph(number, side=160):
    """A smooth image in colors, another one for each number."""
    small = np.random.default_rng(number).integers(256, size=(6, 8, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((side * 4 // 3, side), Image.Resampling.BICUBIC)


def write_copies(place, number):
    """Write a photograph and seven changes of it."""
    place.mkdir(parents=True, exist_ok=True)
    image = photograph(number)
    name = f"{number:02d}"
    image.save(place / f"{name}-original.png")
    image.save(place / f"{name}-75.jpg", quality=75)
    image.save(place / f"{name}-40.jpg", quality=40)
    image.resize((106, 80)).save(place / f"{name}-half.png")
    image.save(place / f"{name}-webp.webp", quality=80)
    image.crop((3, 2, 210, 158)).save(place / f"{name}-crop.png")
    ImageEnhance.Brightness(image).enhance(1.2).save(place / f"{name}-brighter.png")
    image.resize((426, 320)).save(place / f"{name}-doubled.png")


def stacked(tensors):
    """Tensors of one shape as one."""
    return torch.stack(tensors)
