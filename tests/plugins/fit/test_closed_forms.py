"""Features without training, and their coordinates."""

import pytest
import torch
from torch import nn

from pml_ext import TotalWhitening, WithinClassWhitening
from pml_ext_fit.closed_forms import AS_THEY_ARE, CLOSED_FORMS, WHITENED, WITHIN_CLASSES, coordinates


def cosines(rows):
    points = nn.functional.normalize(rows)
    return points @ points.T


def test_settings_are_those_of_a_recipe():
    assert AS_THEY_ARE.settings(8) == {"model.embedder": "none", "model.embedding_size": 8}
    assert WHITENED.settings(8) == {"model.embedder": "pca", "model.embedding_size": 8, "model.shrinkage": 0.6}
    assert WITHIN_CLASSES.settings(8)["model.embedder"] == "within-class"


@pytest.mark.parametrize("form", CLOSED_FORMS)
def test_few_items_are_whitened_in_their_coordinates(form):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(30, 100, generator=generator, dtype=torch.float64) + 1
    labels = torch.arange(30) // 3
    small = coordinates(features)
    assert small.shape == (30, 30)
    torch.testing.assert_close(cosines(small), cosines(features))
    wanted = {
        "none": nn.Identity(),
        "pca": TotalWhitening(0.6).fit(features[:21]),
        "within-class": WithinClassWhitening(0.6).fit(features[:21], labels[:21]),
    }[form.embedder](features[21:])
    found = form.fit(small[:21], labels[:21], size=100)(small[21:])
    torch.testing.assert_close(cosines(found), cosines(wanted), atol=1e-6, rtol=0)


def test_many_items_are_used_unchanged():
    features = torch.randn(30, 4)
    assert coordinates(features) is features
