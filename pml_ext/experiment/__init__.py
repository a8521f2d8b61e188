"""From a recipe to a run: data, training, tests, and the folder that is left behind."""

from typing import TYPE_CHECKING

from ..lazy import lazily

if TYPE_CHECKING:
    from ..devices import choose_device
    from .launch import FailedRunsError, Plan, draw_report, execute, plan, summarize, train
    from .recipe import Recipe, load_recipes, validate
    from .run import Listener, Run

__getattr__ = lazily(__name__, "train", "training", ("matplotlib", "pydantic", "sklearn", "torchvision"))

__all__ = [
    "FailedRunsError",
    "Listener",
    "Plan",
    "Recipe",
    "Run",
    "choose_device",
    "draw_report",
    "execute",
    "load_recipes",
    "plan",
    "summarize",
    "train",
    "validate",
]
