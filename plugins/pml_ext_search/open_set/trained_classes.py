"""The classes that a run was trained on, by their names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pml_ext_train.files import composed

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
    recorded = set(map(composed, run.description.class_names))
    # Other spellings; names without letters are not compared.
    others = {_comparable(name) for name in recorded.difference(names)} - {""}
    trained = {name for name in names if name in recorded or _comparable(name) in others}
    if former:
        trained |= {name for name in names if recorded & former.get(name, set())}
    return trained


def _comparable(name: str) -> str:
    return re.sub(r"[\W_]+", " ", name.casefold()).strip()
