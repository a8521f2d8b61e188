"""Samplers of a run's stages."""

import pytest
import torch
from torch.utils.data import SequentialSampler

from pml_ext.errors import ConfigError, RecipeWarning
from pml_ext_train.recipe import DataTable, build_dataset, load_recipes
from pml_ext_train.training.stages import build_stages

from ....overrides import typed


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


def test_too_few_classes_make_a_smaller_batch():
    """Ten digits x 4 images, not the 64 of the recipe."""
    images = build_dataset(DataTable(name="digits"), None).train
    (recipe,) = load_recipes("cbml/digits", typed(["sampler.m=4", "sampler.batch_size=64"])).values()
    with pytest.warns(RecipeWarning, match="sampler.batch_size: 10 classes x m = 4 make batches of 40 instead of 64"):
        (stage,) = build_stages(recipe, images, torch.device("cpu"), 0)
    assert stage.batch_size == stage.table.sampler.batch_size == 40
    assert len({*images.labels[list(stage.sampler)[:40]].tolist()}) == 10


def test_empty_classes_are_refused_by_key():
    with pytest.raises(ConfigError, match=r"--set sampler.m=0: (sampler.m: )?found 0; wanted 1 image of a class"):
        load_recipes("cbml/digits", typed(["sampler.m=0"]))
