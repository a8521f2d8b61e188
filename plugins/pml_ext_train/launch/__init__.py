"""Runs of a recipe: planned, started one after the other, resumed."""

from pml_ext.lazy import lazily

__getattr__, __dir__ = lazily(__name__, "train", "training")
