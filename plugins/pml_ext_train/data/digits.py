"""Handwritten digits, shipped with scikit-learn."""

from pathlib import Path

import torch

from pml_ext.errors import ConfigError

from .images import LabeledImages
from .splits import DataSplits, split_by_image


def digits(root: Path | None = None, seed: int = 0) -> DataSplits:
    """1,797 handwritten digits of 8 x 8 pixels: half of each class to train, half to test.

    They are shipped with scikit-learn. ``seed`` divides them; the seed of a run does not.
    """
    train, test = split_by_image(_all_digits(root), 0.5, seed)
    return DataSplits(train, test, image_size=8, channels=1)


def digits_unseen(root: Path | None = None) -> DataSplits:
    """The digits 0 to 4 to train and 5 to 9 to test: too few classes to learn from."""
    images = _all_digits(root)
    return DataSplits(images.subset(images.labels < 5), images.subset(images.labels >= 5), image_size=8, channels=1)


def _all_digits(root: Path | None) -> LabeledImages:
    from sklearn.datasets import load_digits

    if root is not None:
        raise ConfigError(f"--data {root}: the digits are shipped with scikit-learn; leave out --data")
    bunch = load_digits()
    pixels = torch.from_numpy(bunch.images / bunch.images.max() * 255).round().to(torch.uint8)
    return LabeledImages(pixels[:, None], bunch.target, [str(digit) for digit in range(10)], channels=1)
