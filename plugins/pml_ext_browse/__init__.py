"""``pml-ext browse``: a page on localhost with a folder's photographs, as a trained run sees them.

:class:`BrowsedRun` computes the content, and :mod:`pml_ext_browse.server` serves it. The service ``search`` loads runs.
"""

from typing import TYPE_CHECKING

import lazy_loader

from pml_ext.plugin import Command, hookimpl

if TYPE_CHECKING:
    from .collection import BrowsedRun as BrowsedRun, open_collections as open_collections

__getattr__, _, __all__ = lazy_loader.attach(__name__, submod_attrs={"collection": ["BrowsedRun", "open_collections"]})


@hookimpl
def pml_ext_commands() -> dict[str, Command]:
    """The command that serves the page."""
    return {"browse": Command("pml_ext_browse.commands:browse", "Browse a folder in a local web page, until Ctrl-C.")}
