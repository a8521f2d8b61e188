"""Interfaces between the tools that search: shared data, and the services that they offer.

Tools do not import each other. :func:`pml_ext.registry.service` returns a tool by name, as an object with the methods
defined here.
"""

from pml_ext.lazy import lazily

__getattr__, __dir__ = lazily(__name__, "train", "retrieval")
