"""Runs of a recipe: planned, started, resumed."""

from pml_ext.lazy import lazily, require_packages

require_packages(("matplotlib", "pydantic", "sklearn", "tomli_w", "torchvision"), "train", "training")
__getattr__, __dir__ = lazily(__name__, "train", "training")
