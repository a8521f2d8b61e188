"""``pml-ext browse``: a page on localhost with a folder's photographs as a trained run sees them.

:class:`Collection` has all that the page shows, and knows nothing of the page; :mod:`pml_ext.browse.page` draws it with
Gradio, and :mod:`pml_ext.browse.server` serves it.
"""

from ..errors import needs_extra

with needs_extra("train", "pml-ext browse"):
    from .collection import Collection, Judged, Map, Near
    from .opening import open_collections

__all__ = ["Collection", "Judged", "Map", "Near", "open_collections"]
