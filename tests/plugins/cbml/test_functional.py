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


@pytest.mark.parametrize("settings", [{}, {"gamma": 0.7, "reduction": "sum"}, {"gamma": 1.0, "detach_target": True}])
def test_metric_variance_is_that_of_a_loop(settings):
    x, labels = loops.batch(rows=9)
    labels[0] = 99  # without positives
    unit = torch.nn.functional.normalize(x)
    similarity = unit @ unit.T
    same = labels[:, None] == labels
    positives = same & ~torch.eye(9, dtype=torch.bool)
    negatives = ~same
    found = functional.metric_variance(similarity, torch.stack((positives, negatives)), **settings)
    named = {{"gamma": "mvc_gamma", "reduction": "mvc_reduction"}.get(key, key): each for key, each in settings.items()}
    expected = torch.stack([term[2] for term in loops.anchor_terms(x, loops.pairs_from_labels(labels), **named)])
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(
        *(torch.autograd.grad(each.sum(), x, retain_graph=True)[0] for each in (found, expected)), rtol=1e-8, atol=1e-10
    )
    assert found[0] == 0


def test_a_row_of_nan_without_positives_is_not_hidden():
    similarity = torch.tensor([[math.nan, 0.5]], dtype=torch.float64)
    none = torch.zeros(1, 2, dtype=torch.bool)
    both = torch.ones(1, 2, dtype=torch.bool)
    assert functional.metric_variance(similarity, torch.stack((none, both))).isnan().all()
    assert functional.metric_variance(similarity.nan_to_num(), torch.stack((both, none))).tolist() == [0.0]


@pytest.mark.parametrize("name", functional.AVERAGINGS)
def test_averagings_are_of_one_plus_the_sum(name):
    total = torch.tensor([1.0, 1.5, 40.0], dtype=torch.float64)
    expected = loops.G[name](total)
    torch.testing.assert_close(functional.AVERAGINGS[name](total.log()), expected, rtol=1e-12, atol=1e-12)
    assert functional.AVERAGINGS[name](torch.tensor([1e4])).isfinite().all()
