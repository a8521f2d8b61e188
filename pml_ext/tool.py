"""Everything that a command on runs may import from ``pml_ext``: runs, networks, images, metrics, output, errors.

The names are imported on first use, so that a command imports what it uses.
"""

from __future__ import annotations

from . import __version__ as __version__
from .lazy import lazily

__getattr__, __dir__ = lazily(__name__, "train", "the names of pml_ext.tool")
