"""A data set that is drawn: outlines of polygons, stars and ellipses."""

import numpy as np
import torch
from PIL import Image, ImageDraw

from pml_ext.plugin import DataSplits, LabeledImages

CORNERS = {
    "triangle": (3, 1.0),
    "square": (4, 1.0),
    "pentagon": (5, 1.0),
    "hexagon": (6, 1.0),
    "star of 4": (8, 0.4),
    "star of 5": (10, 0.4),
    "star of 6": (12, 0.5),
    "circle": (40, 1.0),
}


def shapes(root=None, image_size: int = 16, per_class: int = 60, seed: int = 0) -> DataSplits:
    """Outlines of eight shapes, turned, moved and scaled at random, one half of each class to train with.

    Args:
        root: not needed.
        image_size: height and width, in pixels.
        per_class: images of a shape.
        seed: of the draw.
    """
    generator = np.random.default_rng(seed)
    images = []
    labels = []
    for label, (corners, inner) in enumerate(CORNERS.values()):
        for _ in range(per_class):
            images.append(_drawn(corners, inner, image_size, generator))
            labels.append(label)
    pixels = torch.from_numpy(np.stack(images))[:, None]
    everything = LabeledImages(pixels, labels, list(CORNERS), channels=1)
    test = np.arange(len(labels)) % 2 == 1
    return DataSplits(everything.subset(~test), everything.subset(test), image_size=image_size, channels=1)


def _drawn(corners: int, inner: float, size: int, generator: np.random.Generator) -> np.ndarray:
    scale = 8  # drawn large, and made small with smooth edges
    canvas = Image.new("L", (size * scale, size * scale))
    angles = 2 * np.pi * (np.arange(corners) / corners + generator.random())
    radii = np.where(np.arange(corners) % 2, inner, 1.0) * size * scale * generator.uniform(0.3, 0.45)
    center = size * scale * (0.5 + generator.uniform(-0.05, 0.05, 2))
    points = [(center[0] + r * np.cos(a), center[1] + r * np.sin(a)) for r, a in zip(radii, angles, strict=True)]
    ImageDraw.Draw(canvas).polygon(points, outline=255, width=scale)
    return np.array(canvas.resize((size, size), Image.Resampling.BOX))
