"""Folds of classes, and of the items of few classes."""

import numpy as np
import pytest

from pml_ext_fit.folds import folds_of


def held_out(folds):
    return np.sort(np.concatenate([fold.held_out for fold in folds.parts])).tolist()


@pytest.mark.parametrize(("classes", "parts"), [(4, 2), (5, 2), (6, 2), (9, 3), (12, 4), (98, 4)])
def test_every_class_is_held_out_once(classes, parts):
    labels = np.repeat(np.arange(classes), 3)
    folds = folds_of(labels, shared=False, seed=0)
    assert (folds.by, len(folds.parts), folds.classes) == ("class", parts, classes)
    assert held_out(folds) == list(range(3 * classes))
    for fold in folds.parts:
        assert set(labels[fold.held_out]).isdisjoint(labels[fold.fitted])
        assert len(fold.held_out) + len(fold.fitted) == len(labels)
        assert len(set(labels[fold.held_out])) >= (2 if classes < 6 else 3)


def test_a_lone_item_is_never_held_out():
    labels = np.concatenate([np.repeat(np.arange(8), 4), [8, 9]])
    folds = folds_of(labels, shared=False, seed=0)
    assert held_out(folds) == list(range(32))
    assert all({32, 33} <= set(fold.fitted) for fold in folds.parts)


@pytest.mark.parametrize(("classes", "each", "parts"), [(5, 8, 4), (2, 4, 2), (30, 6, 3)])
def test_items_of_tested_classes_are_held_out(classes, each, parts):
    labels = np.repeat(np.arange(classes), each)
    folds = folds_of(labels, shared=True, seed=0)
    assert (folds.by, len(folds.parts)) == ("item", parts)
    assert held_out(folds) == list(range(len(labels)))
    for fold in folds.parts:
        assert set(labels[fold.fitted]) == set(range(classes))
        assert np.bincount(labels[fold.held_out]).min() >= 2


@pytest.mark.parametrize(
    ("labels", "shared"),
    [([0, 0, 1, 1], True), ([0] * 8, True), (list(range(9)), True), ([0, 1, 2] * 8, False), (list(range(9)), False)],
)
def test_too_few_items_have_no_folds(labels, shared):
    assert folds_of(labels, shared, seed=0) is None


def test_folds_are_drawn_by_the_seed():
    labels = np.repeat(np.arange(24), 2)
    first, same, other = (folds_of(labels, False, seed).parts[0].held_out.tolist() for seed in (0, 0, 1))
    assert first == same != other
