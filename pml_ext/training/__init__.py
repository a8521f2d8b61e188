"""From a recipe to a run: data, training, tests, and the folder that is left behind."""

from typing import TYPE_CHECKING

from ..lazy import lazily

if TYPE_CHECKING:
    from ..recipe import Recipe as Recipe
    from ..recipe import load_recipes as load_recipes
    from ..recipe import validate as validate
    from .launch import FailedRunsError as FailedRunsError
    from .launch import draw_report as draw_report
    from .launch import train as train
    from .listener import Listener as Listener
    from .loop import train_run as train_run
    from .run import Run as Run
    from .summary import summarize as summarize

__getattr__ = lazily(__name__, "train", "training", ("matplotlib", "pydantic", "sklearn", "torchvision"))
