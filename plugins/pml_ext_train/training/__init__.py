"""The run: data, batches, steps, tests between epochs, checkpoints."""

from pml_ext.lazy import lazily

__getattr__, __dir__ = lazily(__name__, "train", "training")
