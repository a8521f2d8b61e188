"""The view of a run: embeddings that are not finite."""

import math

import pytest
import torch

from pml_ext.errors import TrainingError
from pml_ext_train.recipe import load_recipes
from pml_ext_train.training.evaluation import evaluate_split
from pml_ext_train.training.run import Run


def test_embeddings_that_are_not_finite_are_not_ranked(tmp_path):
    run = Run(next(iter(load_recipes("cbml/digits", {"model.trunk.width": 8}).values())), "cbml/digits", tmp_path)
    torch.nn.init.constant_(run.embedder.bias, math.nan)
    with pytest.raises(TrainingError, match="the network gives nan for test images"):
        evaluate_split(run, "test")
