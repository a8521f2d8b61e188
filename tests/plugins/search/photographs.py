"""Made-up photographs, their copies, and a network in place of a trained one."""

import numpy as np
import torch
from PIL import Image, ImageEnhance

from pml_ext_search.embedded import Embedded


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


def thumbnails(images):
    """Embeddings of images: thumbnails of 6 x 8 pixels in colors."""
    rows = []
    for image in images:
        small = image.convert("RGB").resize((8, 6), Image.Resampling.BOX)
        rows.append(torch.from_numpy(np.asarray(small, dtype=np.float32).ravel() - 128))
    return torch.nn.functional.normalize(torch.stack(rows))


def embedded(folder):
    """The images of a folder and their embeddings."""
    paths = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.*"))
    return Embedded(folder, paths, thumbnails([Image.open(folder / path) for path in paths]))
