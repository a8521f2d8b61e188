"""What a run writes while it trains: numbers, trackers, and the files of its folder."""

from pml_ext.lazy import lazily

__getattr__, __dir__ = lazily(__name__, "train", "records")
