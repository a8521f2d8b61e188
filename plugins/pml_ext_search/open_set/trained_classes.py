"""The classes that a run was trained on, by their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pml_ext_train.files import composed, same_names

if TYPE_CHECKING:
    from pml_ext_train.networks import By
    from pml_ext_train.results import LoadedRun


def trained_classes(
    run: LoadedRun | None, by: By, names: Sequence[str], former: Mapping[str, set[str]] | None = None
) -> set[str]:
    """The classes that a run was trained on, by name; ``former`` has the names that some had before.

    Other spellings count: the folder ``greek_character01`` may have been ``Greek/character01``.
    """
    if run is None:
        return set()
    model = run.recipe.model
    if model.freeze == "trunk" and (by == "features" or model.embedder in ("none", "pca")):
        return set()
    recorded = run.description.class_names
    trained = same_names(names, recorded)
    if former:
        known = set(map(composed, recorded))
        trained |= {name for name in names if known & former.get(name, set())}
    return trained
