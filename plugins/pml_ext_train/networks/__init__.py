"""Networks: trunks, pretrained weights, heads, preprocessing."""

from pml_ext.lazy import lazily

__getattr__, __dir__ = lazily(__name__, "train", "a network")
