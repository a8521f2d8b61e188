"""A run with an index of its own folder, whose classes are changed."""

import shutil

import pytest

from pml_ext import load_run

from ..conftest import write_digits


@pytest.fixture
def enrolling(runs, tmp_path):
    """A run with an index of its own folder, and photographs to enroll."""
    run = load_run(shutil.copytree(runs[0], tmp_path / "run", ignore=lambda *_: ["collection"]), "cpu")
    write_digits(tmp_path / "images", range(20))
    write_digits(tmp_path / "photographs", range(100, 104))
    run.index(tmp_path / "images")
    return run, tmp_path / "images", sorted((tmp_path / "photographs").rglob("*.png"))
