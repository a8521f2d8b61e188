"""A folder of made-up photographs, which tests of choices train on."""

import numpy as np
from PIL import Image


def write_photos(place, classes, each, seed=0):
    """Write square photographs; each class has a color of its own, with noise."""
    generator = np.random.default_rng(seed)
    for label in range(classes):
        folder = place / f"class-{label:02d}"
        folder.mkdir(parents=True)
        color = generator.integers(60, 196, size=3)
        for number in range(each):
            noise = generator.normal(0, 40, size=(48, 48, 3))
            Image.fromarray(np.clip(color + noise, 0, 255).astype(np.uint8)).save(folder / f"{number}.png")
