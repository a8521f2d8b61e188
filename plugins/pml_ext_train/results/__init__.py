"""What is written afterwards: metrics, report, export; and the trained network, loaded again."""

from pml_ext.lazy import lazily

__getattr__, __dir__ = lazily(__name__, "train", "results")
