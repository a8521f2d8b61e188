"""What several tests of this folder need."""

import pytest
import torch

from pml_ext import choice
from pml_ext.choice import candidates
from pml_ext.recipe import build_dataset, load_recipe
from pml_ext.recipe.images import describe_images, settings_for_recipe

from ..overrides import typed


def by_class(mean, spread=0.01, classes=12, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return mean + spread * torch.randn(classes, generator=generator, dtype=torch.float64)


def needs_weights():
    if choice.why_not():
        pytest.skip("the extra photos is not installed, whose trunk the recipes name")


def small(place, *overrides):
    """Return the small network as a candidate, which needs no weights."""
    return candidates.Candidate(
        "small", choice.SMALL, settings_for_recipe(choice.SMALL, describe_images(place, typed(overrides)))
    )


def training_files(place):
    splits = build_dataset(load_recipe(choice.SMALL, typed(small(place).settings)).data, None)
    return splits.train.paths
