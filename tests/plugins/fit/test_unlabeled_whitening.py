"""Whether features without labels are whitened: mixtures of which whitening loses or keeps the classes."""

import pytest
import torch

from pml_ext_fit import unlabeled_whitening
from pml_ext_fit.unlabeled_whitening import shrinkage_without_labels, whitening_helps


def mixture(classes, size, spread):
    """Return 600 items of Gaussian classes, whose directions have standard deviations ``spread`` within classes."""
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(classes, size, generator=generator)
    return means[torch.arange(600) % classes] + spread * torch.randn(600, size, generator=generator)


def test_shrinkage_by_items_and_features():
    assert shrinkage_without_labels(600, 600) == 0.958
    assert shrinkage_without_labels(10**9, 1) == 0.94


@pytest.mark.parametrize(
    ("features", "helps"),
    [
        (mixture(5, 256, 1.0), False),  # few classes, far apart
        (mixture(60, 32, torch.tensor([3.0] * 4 + [0.5] * 28)), True),  # many classes
        (torch.ones(600, 4), False),
        (mixture(1, 32, torch.linspace(0.1, 3, 32)), False),  # no classes
    ],
)
def test_many_classes_are_whitened_and_few_not(features, helps):
    assert whitening_helps(features, 0.94) is helps


def test_items_are_drawn_from_many(monkeypatch):
    monkeypatch.setattr(unlabeled_whitening, "ITEMS", 300)
    features = mixture(5, 256, 1.0)
    assert not whitening_helps(features, 0.94)
    drawn = torch.randperm(600, generator=torch.Generator().manual_seed(0))[:300]
    features[[row for row in range(600) if row not in set(drawn.tolist())]] = torch.nan
    assert not whitening_helps(features, 0.94)
    assert whitening_helps(mixture(60, 32, 0.5), 0.94)
