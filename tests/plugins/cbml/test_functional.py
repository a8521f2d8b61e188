"""The equations of contrastive Bayesian metric learning, against loops."""

import math

import pytest
import torch

from pml_ext_cbml import functional

from . import loops


@pytest.mark.parametrize("statistics", [(0.7, 0.2, 0.1, 0.3), (0.6, 0.4, 0.2, 0.25), (0.5, 0.3, 0.5, 0.3)])
def test_the_log_ratio_is_that_of_two_densities(statistics):
    z = torch.linspace(-1, 1, 21, dtype=torch.float64).view(3, 7)
    found = functional.log_ratio(z, *statistics)
    torch.testing.assert_close(found, loops.likelier(z, *statistics).log(), rtol=1e-12, atol=1e-12)


def test_a_nan_row_without_positives_surfaces():
    similarity = torch.tensor([[math.nan, 0.5]], dtype=torch.float64)
    none = torch.zeros(1, 2, dtype=torch.bool)
    both = torch.ones(1, 2, dtype=torch.bool)
    assert functional.metric_variance(similarity, torch.stack((none, both))).isnan().all()
    assert functional.metric_variance(similarity.nan_to_num(), torch.stack((both, none))).tolist() == [0.0]
