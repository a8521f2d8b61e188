"""What a run writes while it trains."""

from pml_ext.lazy import lazily

__getattr__, __dir__ = lazily(__name__, "train", "records")
