"""Pages of results: figures and tables in one HTML file."""

from pml_ext.lazy import lazily

__getattr__, __dir__ = lazily(__name__, "train", "a report")
