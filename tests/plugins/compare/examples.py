"""Recipes, jobs and finished runs that the tests of this folder share."""

import os
import signal
import time
from contextlib import closing

import tomli_w
from typer.testing import CliRunner

from pml_ext_compare.job_queue import do
from pml_ext_compare.jobs import Executor
from pml_ext_compare.runs import RunJob, plans_of
from pml_ext_compare.tuning import trial_jobs
from pml_ext_train.cli.app import app_for
from pml_ext_train.files import read_json, write_json
from pml_ext_train.recipe import load_recipes

ONE = [0.70, 0.72, 0.71, 0.75, 0.69]
OTHER = [0.73, 0.74, 0.72, 0.75, 0.74]

SMALL = """
extends = "pml/multi-similarity/digits"
sampler = { batch_size = 20, m = 2, iterations = 3 }
schedule = { name = "constant", epochs = 2, milestones = [] }
model = { embedding_size = 8, trunk = { blocks = 1, width = 8 } }
evaluation = { baselines = false, figures = "few", training_images = 0 }
"""

TUNABLE = """
extends = "pml/contrastive/digits"
data = { name = "digits-unseen" }
sampler = { batch_size = 4, m = 2, iterations = 2 }
schedule = { name = "constant", epochs = 2, milestones = [] }
model = { embedding_size = 8, trunk = { blocks = 1, width = 8 } }
evaluation = { baselines = false, figures = "few", training_images = 0 }

[tune]
"optimizer.lr" = { low = 1e-4, high = 1e-2, log = true }
"loss.neg_margin" = { low = 0.2, high = 2.0 }
"sampler.m" = { choices = [2] }
"""


class Quick:
    """A job that has nothing to do."""

    name = "quick"

    def do(self, on_progress):
        pass


class Sleeper:
    """A job whose worker tells that it has begun to start, and takes its time."""

    name = "sleeper"

    def do(self, on_progress):
        time.sleep(600)


class Killed(RunJob):
    """A run whose worker is killed once, as soon as there is a checkpoint."""

    def do(self, on_progress):
        killed = self.plan.folder.parent / "killed"

        def and_die(said):
            if any(self.plan.folder.rglob("last.pt")) and not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            on_progress(said)

        super().do(and_die)


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


def jobs(tmp_path, seeds=1, more=""):
    """Return the jobs of a recipe that trains in a second."""
    file = tmp_path / "one.toml"
    file.write_text(SMALL + more)
    return [RunJob(plan, "cpu", None) for plan in plans_of(load_recipes(str(file)), tmp_path, seeds)]


def metrics(mine, executor, on_progress=silent):
    """Do jobs, and return the metrics of their runs."""
    with closing(executor):
        assert do(mine, executor, on_progress) == {}
    return [read_json(job.plan.folder / "metrics.json")["after"] for job in mine]


def finish(study, count=None, on_progress=silent):
    """Do the missing trials of a study, or the first of them, and return their errors."""
    return do(trial_jobs([study], "cpu", None)[:count], Executor(), on_progress)


def states(study):
    """Return the states of a study's trials."""
    return [trial.state.name for trial in study.optuna_study().get_trials()]
