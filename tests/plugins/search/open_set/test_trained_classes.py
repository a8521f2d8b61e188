"""Which classes a run was trained on."""

import pytest

from pml_ext import load_run
from pml_ext_search.open_set.trained_classes import trained_classes


@pytest.mark.parametrize(
    ("names", "trained"),
    [
        (["1", "2", "seal"], {"1", "2"}),
        (["_1_", "++", "--"], {"_1_"}),  # names of symbols alone are not alike
    ],
)
def test_trained_classes_are_known_by_name(runs, names, trained):
    assert trained_classes(load_run(runs[0], "cpu").loaded, "embeddings", names) == trained


def test_frozen_features_are_trained_on_no_class(runs, monkeypatch):
    run = load_run(runs[0], "cpu")
    monkeypatch.setattr(run.recipe.model, "freeze", "trunk")
    assert trained_classes(run.loaded, "features", ["1"]) == set()
