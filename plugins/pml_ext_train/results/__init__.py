"""Results of a run: metrics, report, export, and the trained network."""

from pml_ext.lazy import lazily

__getattr__, __dir__ = lazily(__name__, "train", "results")
