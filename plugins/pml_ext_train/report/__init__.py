"""Pages of results with figures and tables."""

from pml_ext.lazy import lazily

__getattr__, __dir__ = lazily(__name__, "train", "a report")
