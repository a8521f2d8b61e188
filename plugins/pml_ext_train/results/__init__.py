"""Metrics, report and export of a run, and its trained network."""

from pml_ext.lazy import lazily

__getattr__, __dir__ = lazily(__name__, "train", "results")
