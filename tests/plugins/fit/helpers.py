"""What several tests of this folder need."""

import torch

from pml_ext_fit.candidates import small_network
from pml_ext_fit.images import describe_images
from pml_ext_fit.scores import Scores
from pml_ext_fit.trials import Workplace
from pml_ext_train.recipe import build_dataset, load_recipe
from pml_ext_train.training.listener import Silence


def scores(mean, spread=0.01, classes=12, seed=0):
    """Scores of made-up classes around a mean."""
    values = mean + spread * torch.randn(2, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Scores(values[0], values[1])


def workplace(folder, overrides=(), say=print):
    return Workplace(overrides, folder, 0, "cpu", Silence(), say)


def recipe_of(candidate):
    return load_recipe(candidate.recipe, candidate.settings)


def training_files(place):
    return build_dataset(recipe_of(small_network(describe_images(place))).data, None).train.paths
