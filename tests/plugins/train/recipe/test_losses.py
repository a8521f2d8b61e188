"""Losses of a recipe: wrapped, with their classes, and weights of these."""

import numpy as np
import pytest
import torch
from pytorch_metric_learning.losses import ArcFaceLoss, TripletMarginLoss
from pytorch_metric_learning.reducers import ClassWeightedReducer

from pml_ext import CrossBatchMemory, HardPairMiner, RegularizedLoss
from pml_ext.errors import ConfigError
from pml_ext_train.data import LabeledImages
from pml_ext_train.recipe import (
    build_loss,
    load_recipes,
    loss_context,
)
from pml_ext_train.training.stages import build_stages

from .recipes import one

EMBEDDINGS = torch.randn(6, 64, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([1, 4, 9, 9, 4, 1])


def test_a_memory_wraps_loss_regularizer_and_miner():
    overrides = ("loss.regularizer=metric-variance", "loss.miner=hard-pair", "loss.memory.size=4096")
    loss, miner = build_loss(one("cbml/digits", *overrides).loss, {"embedding_size": 64})
    assert isinstance(loss, CrossBatchMemory)
    assert (loss.memory_size, miner) == (4096, None)
    assert isinstance(loss.loss, RegularizedLoss)
    assert isinstance(loss.miner, HardPairMiner)
    with pytest.raises(ConfigError, match="loss.memory: CrossBatchMemory needs a loss .* does not take references"):
        one("pml/proxy-anchor/digits", "loss.memory.size=4096")


def test_losses_with_classes_take_labels_without_held_out():
    (recipe,) = load_recipes("pml/proxy-anchor/digits").values()
    loss, _ = build_loss(recipe.loss, loss_context(recipe, [1, 4, 9]))
    plain, _ = build_loss(recipe.loss, loss_context(recipe, [0, 1, 2]))
    plain.load_state_dict(loss.state_dict())
    expected = plain(EMBEDDINGS, torch.tensor([0, 1, 2, 2, 1, 0]))
    assert loss(EMBEDDINGS, LABELS) == loss(EMBEDDINGS, labels=LABELS) == expected


def test_class_weights_are_a_list_of_numbers():
    """One weight for each training class; labels need not be 0, 1, 2, ..."""
    table = "loss={name='pml/triplet-margin', reducer={name='pml/class-weighted', weights=[1, 0.5, 3]}}"
    recipe = one("cbml/digits", table)
    loss, _ = build_loss(recipe.loss, loss_context(recipe, [1, 4, 9]))
    weights = torch.zeros(10)
    weights[[1, 4, 9]] = torch.tensor([1, 0.5, 3])
    theirs = TripletMarginLoss(reducer=ClassWeightedReducer(weights))
    torch.testing.assert_close(loss(EMBEDDINGS, LABELS), theirs(EMBEDDINGS, LABELS))
    images = LabeledImages(torch.zeros(64, 1, 8, 8, dtype=torch.uint8), np.arange(64) % 4, list("abcd"))
    with pytest.raises(ConfigError, match="must be 4 numbers, one for each training class .* got 3"):
        build_stages(recipe, images, torch.device("cpu"), 0)
    with pytest.raises(ConfigError, match="weights of pml/class-weighted must be numbers"):
        one("cbml/digits", table.replace("0.5", "'0.5'"))


def test_class_weights_follow_renumbered_labels():
    table = "loss={name='pml/arcface', reducer={name='pml/class-weighted', weights=[1, 0.5, 3]}}"
    recipe = one("cbml/digits", table)
    torch.manual_seed(0)
    loss, _ = build_loss(recipe.loss, loss_context(recipe, [1, 4, 9]))
    torch.manual_seed(0)
    weights = torch.tensor([1, 0.5, 3])
    theirs = ArcFaceLoss(3, recipe.model.embedding_size, reducer=ClassWeightedReducer(weights))
    wanted = theirs(EMBEDDINGS, torch.tensor([0, 1, 2, 2, 1, 0]))
    torch.testing.assert_close(loss(EMBEDDINGS, LABELS), wanted)
    by_label = one("cbml/digits", table.replace("3]", "3, 1, 1, 1, 1, 1, 1, 1]"))
    with pytest.raises(ConfigError, match="must be 4 numbers, one for each training class .* got 10"):
        build_loss(by_label.loss, loss_context(recipe, [1, 4, 8, 9]))
