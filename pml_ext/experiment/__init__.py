"""From a recipe to a run: the glue to PML's trainer, tester and record-keeper."""

from ..errors import needs_extra

with needs_extra("train", "training"):
    from .recipe import Recipe, load_recipes, validate
    from .run import Listener, Run
    from .runs import FailedRunsError, Plan, choose_device, draw_report, execute, plan, summarize, train

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
