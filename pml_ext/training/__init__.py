"""From a recipe to a run: data, training, tests, and the folder that is left behind."""

from ..lazy import lazily, require_packages

require_packages(("matplotlib", "pydantic", "sklearn", "torchvision"), "train", "training")
__getattr__, __dir__ = lazily(__name__, "train", "training")
