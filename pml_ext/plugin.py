"""Everything that a plugin may import from ``pml_ext``: hooks, base classes, pair functions, checks, the view of a run.

PML's own base classes are here too; its losses and miners are components: ``build("pml/contrastive", "loss")``. Data
sets, clustering and figures, which need the extra ``train``, are imported on first use.
"""

from __future__ import annotations

from .lazy import lazily

__getattr__, __dir__ = lazily(__name__, "train", "data sets, clustering and figures of pml_ext.plugin")
