"""Runs that are built, and not trained."""

import torch

from pml_ext_train.recipe import load_recipes
from pml_ext_train.training.run import Run

from ....overrides import typed

SHORT = ("schedule.epochs=4", "schedule.milestones=[2]", "sampler.iterations=2", "model.trunk.width=8")


def built(folder, *overrides, recipe="pml/proxy-anchor/digits", **settings):
    (loaded,) = load_recipes(recipe, typed([*SHORT, *overrides])).values()
    folder.mkdir(exist_ok=True)
    return Run(loaded, recipe, folder, **settings)


def equal(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
