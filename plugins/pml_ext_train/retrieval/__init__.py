"""Interfaces between tools; :func:`pml_ext.registry.service` returns a tool by name."""

from pml_ext.lazy import lazily

__getattr__, __dir__ = lazily(__name__, "train", "retrieval")
