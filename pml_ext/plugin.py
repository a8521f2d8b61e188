"""Everything that a plugin may import: hooks, base classes, pair functions, checks.

This includes PML's base classes; PML's losses and miners are components: ``build("pml/contrastive", "loss")``. Data
sets, figures, stores and trackers come from ``pml_ext_train``.
"""

import importlib
from typing import Any

from .errors import needs_extra
from .lazy import lazily

_OF_TRAINING = {
    "DataSplits": "data",
    "LabeledImages": "data",
    "Rows": "retrieval",
    "SearchFilter": "retrieval",
    "SearchResult": "retrieval",
    "Store": "retrieval",
    "Tracker": "records",
    "figures": "report",
    "write_atomically": "files",
}
_get, _listed = lazily(__name__, "train", "clustering of pml_ext.plugin")


def __getattr__(name: str) -> Any:
    if name not in _OF_TRAINING:
        return _get(name)
    with needs_extra("train", f"pml_ext.plugin.{name}"):
        room = importlib.import_module(f"pml_ext_train.{_OF_TRAINING[name]}")
        return getattr(room, name)


def __dir__() -> list[str]:
    return sorted({*_listed(), *_OF_TRAINING})
