"""The classes that a run was trained on, by their names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pml_ext_train.files import same_names

if TYPE_CHECKING:
    from pml_ext_train.networks import By
    from pml_ext_train.results import LoadedRun


def trained_classes(run: LoadedRun | None, by: By, names: Sequence[str]) -> set[str]:
    """The classes that a run was trained on, by name.

    Other spellings count: the folder ``greek_character01`` may have been ``Greek/character01``.
    """
    if run is None:
        return set()
    model = run.recipe.model
    if model.freeze == "trunk" and (by == "features" or model.embedder in ("none", "pca")):
        return set()
    return same_names(names, run.description.class_names)
