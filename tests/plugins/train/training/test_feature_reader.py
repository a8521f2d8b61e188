"""Batches from kept features."""

import numpy as np
import pytest
import torch

from pml_ext_train.training.batches import epoch_batches
from pml_ext_train.training.feature_reader import FeatureReader
from pml_ext_train.training.features import Features


@pytest.mark.parametrize("kept", [2, 3, 5])
def test_of_kept_views_a_batch_has_different_ones(kept):
    features = [Features.of_vectors(torch.full((4, 1), float(number))) for number in range(kept)]
    reader = FeatureReader(features, np.arange(4), torch.device("cpu"))
    rows = torch.cat([batch.images for batch in reader.read(epoch_batches([[0, 1, 2, 3]] * 50, 0, 1, views=2))])
    assert (rows[::2] != rows[1::2]).all()
    assert set(rows.flatten().tolist()) == set(range(kept))
