"""The digits of scikit-learn."""

from pathlib import Path

import pytest
import torch

from pml_ext.errors import ConfigError
from pml_ext_train.data import digits


def test_digits_are_halved_within_each_class():
    splits = digits()
    assert len(splits.train) + len(splits.test) == 1797
    for label in range(10):
        counts = [int((part.labels == label).sum()) for part in (splits.train, splits.test)]
        assert abs(counts[0] - counts[1]) <= 1
    image, label = splits.train[0]
    assert (image.dtype, tuple(image.shape)) == (torch.uint8, (1, 8, 8))
    assert splits.train.images.max() == 255
    assert torch.equal(digits().test.images, splits.test.images)
    with pytest.raises(ConfigError, match="leave out --data"):
        digits(Path("somewhere"))
