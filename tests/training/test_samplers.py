"""Samplers of a run's stages."""

import pytest
import torch
from torch.utils.data import SequentialSampler

from pml_ext.errors import ConfigError
from pml_ext.recipe import build_dataset, load_recipes
from pml_ext.recipe.schema import DataTable
from pml_ext.training.stages import build_stages

from ..overrides import typed


class Short(SequentialSampler):
    """A pass of 64 images, whatever is asked for."""

    def __init__(self):
        super().__init__(range(64))


@pytest.mark.parametrize(
    ("sampler", "text"),
    [
        ("name='short', batch_size=16, iterations=5", "iterations = 5, but a pass of short gives 4 batches of 16"),
        ("name='shuffle', batch_size=5000, iterations=1", r"1 batches of 5000 need more than the \d+ training images"),
    ],
)
def test_batches_that_the_data_cannot_give_are_refused(isolated_registry, sampler, text):
    images = build_dataset(DataTable(name="digits"), None).train
    isolated_registry.register(Short, name="short")
    (recipe,) = load_recipes("cbml/digits", typed([f"sampler={{{sampler}}}"])).values()
    with pytest.raises(ConfigError, match=f"sampler: {text}; make .* smaller"):
        build_stages(recipe, images, torch.device("cpu"), 0)
