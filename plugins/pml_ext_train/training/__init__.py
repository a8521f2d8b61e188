"""The run: data, batches, steps, tests between epochs, checkpoints."""

from pml_ext.lazy import lazily, require_packages

require_packages(("matplotlib", "pydantic", "sklearn", "torchvision"), "train", "training")
__getattr__, __dir__ = lazily(__name__, "train", "training")
