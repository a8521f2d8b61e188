"""What a run records, and from where it goes on."""

import sqlite3
from contextlib import closing

import pytest
import torch

from pml_ext.recipe import load_recipes
from pml_ext.training.recording import open_records
from pml_ext.training.run import Run

from ..overrides import typed


@pytest.fixture
def run(tmp_path):
    """A run of 3 epochs of 4 iterations."""
    overrides = ["schedule.epochs=3", "schedule.milestones=[2]", "sampler.iterations=4", "track=[{name='tensorboard'}]"]
    (recipe,) = load_recipes("cbml/digits", typed([*overrides, "model.trunk.width=8"])).values()
    return Run(recipe, "cbml/digits", tmp_path / "run")


def iterations(folder):
    with closing(sqlite3.connect(folder / "records" / "logs.db")) as connection:
        return [row[0] for row in connection.execute("SELECT iteration FROM terms ORDER BY iteration")]


def test_records_go_on_after_the_last_checkpoint(run):
    records = open_records(run)
    for iteration in range(1, 8):
        records.add(iteration, {"terms": {"loss": torch.tensor(float(iteration)), "iteration": iteration}})
    records.save()
    records.close()
    assert list((run.folder / "tensorboard").iterdir())
    assert iterations(run.folder) == list(range(1, 8))
    run.epoch = 1
    open_records(run, finished_iterations=2).close()
    assert iterations(run.folder) == list(range(1, 7))
    open_records(run).close()
    assert iterations(run.folder) == list(range(1, 5))


def test_rank_0_alone_records(run, monkeypatch):
    run.rank = 1
    assert open_records(run) is None
    assert not run.folder.exists() or not list(run.folder.iterdir())
