"""Which classes a run was trained on."""

from pml_ext import load_run
from pml_ext_search.open_set.trained_classes import trained_classes


def test_a_trained_class_is_known_by_its_name(runs):
    assert trained_classes(load_run(runs[0], "cpu").loaded, "embeddings", ["1", "2", "seal"]) == {"1", "2"}


def test_names_of_symbols_alone_are_not_alike(runs):
    assert trained_classes(load_run(runs[0], "cpu").loaded, "embeddings", ["_1_", "++", "--"]) == {"_1_"}


def test_features_of_a_frozen_trunk_are_trained_on_no_class(runs, monkeypatch):
    run = load_run(runs[0], "cpu")
    monkeypatch.setattr(run.recipe.model, "freeze", "trunk")
    assert trained_classes(run.loaded, "features", ["1"]) == set()
