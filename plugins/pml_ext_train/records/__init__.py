"""What a run writes while it trains: numbers, trackers, files."""

from pml_ext.lazy import lazily

__getattr__, __dir__ = lazily(__name__, "train", "records")
