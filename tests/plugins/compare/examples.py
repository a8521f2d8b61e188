"""Recipes and finished runs that the tests of this folder share."""

import tomli_w
from typer.testing import CliRunner

from pml_ext.cli.app import app_for
from pml_ext.files import write_json

ONE = [0.70, 0.72, 0.71, 0.75, 0.69]
OTHER = [0.73, 0.74, 0.72, 0.75, 0.74]

SMALL = """
extends = "pml/multi-similarity/digits"
sampler = { batch_size = 20, m = 2, iterations = 3 }
schedule = { name = "constant", epochs = 2, milestones = [] }
model = { embedding_size = 8, trunk = { blocks = 1, width = 8 } }
evaluation = { baselines = false, figures = "few", training_images = 0 }
"""


def silent(job, said):
    """Ignore progress."""


def compare(*words):
    """Run ``pml-ext compare``."""
    return CliRunner().invoke(app_for(["compare"]), ["compare", *map(str, words)], catch_exceptions=True)


def finished_run(folder, recipe, seed, recall, **settings):
    """Write what a comparison reads of a finished run."""
    folder.mkdir(parents=True)
    tables = {"description": "a test", "loss": {"name": "cbml", **settings}, "data": {"name": "digits"}}
    (folder / "recipe.toml").write_text(tomli_w.dumps(tables | {"run": {"recipe": recipe, "seed": seed}}))
    after = {"recall_at_1": recall, "map_at_r": recall / 2, "nmi": 0.5, "k": "word"}
    write_json(folder / "metrics.json", {"recipe": recipe, "seed": seed, "after": after, "seconds": {"total": 1.0}})
