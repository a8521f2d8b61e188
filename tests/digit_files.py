"""Images of scikit-learn's digits, as files."""

from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits


def write_digits(folder: Path, count: int, classes: int | None = None) -> Path:
    """Write the first digits as ``NUMBER.png``, with classes in a folder for each remainder of the number."""
    for number, image in enumerate(load_digits().images[:count]):
        place = folder if classes is None else folder / str(number % classes)
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * 15).astype(np.uint8)).save(place / f"{number}.png")
    return folder
