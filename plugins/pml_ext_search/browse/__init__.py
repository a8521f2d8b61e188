"""``pml-ext browse``: a page on localhost with the photographs of a folder as a trained run sees them.

:class:`BrowsedRun` computes the page's content, independent of HTTP; :mod:`pml_ext_search.browse.server` serves it.
"""

from pml_ext.tool import needs_extra

with needs_extra("train", "pml-ext browse"):
    from .collection import BrowsedRun, Neighbor, Pair, open_collections

__all__ = ["BrowsedRun", "Neighbor", "Pair", "open_collections"]
