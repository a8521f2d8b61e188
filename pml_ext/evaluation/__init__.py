"""Retrieval and clustering metrics, nearest-neighbor searches and k-means."""

from ..lazy import lazily, require_packages

require_packages(("sklearn",), "train", "evaluation")
__getattr__, __dir__ = lazily(__name__, "train", "evaluation")
