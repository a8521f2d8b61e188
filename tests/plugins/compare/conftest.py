"""Fixtures of the tests of this folder."""

import pytest

from pml_ext_compare import runs, trials
from pml_ext_compare.jobs import Executor
from pml_ext_train.launch.launch import execute

from ..train.conftest import own_cache  # noqa: F401 (a fixture)
from .examples import ONE, OTHER, SMALL, TUNABLE, finished_run, jobs, metrics


@pytest.fixture
def recipe(tmp_path):
    """A recipe that trains in a second."""
    (tmp_path / "one.toml").write_text(SMALL)
    return str(tmp_path / "one.toml")


@pytest.fixture
def folder(tmp_path):
    """Five seeds of two variants of one recipe, in ``runs``."""
    for seed, (one, other) in enumerate(zip(ONE, OTHER, strict=True)):
        finished_run(tmp_path / f"runs/{seed}", "cbml/a", seed, one, mvc_weight=1.0)
        finished_run(tmp_path / f"runs/without/{seed}", "cbml/a", seed, other, mvc_weight=0.0)
    return tmp_path


@pytest.fixture
def begun(monkeypatch):
    """The runs that were begun, in place of those that were looked at."""
    names = []

    def noting(plan, *arguments, **named):
        if not (plan.folder / "metrics.json").exists():
            names.append(plan.folder.name)
        return execute(plan, *arguments, **named)

    monkeypatch.setattr(runs, "execute", noting)
    return names


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """The metrics of two runs that were done one after the other in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pml_ext_train.results.finish.write_run_report", lambda *_: None)
        return metrics(jobs(tmp_path_factory.mktemp("here"), seeds=2), Executor())


@pytest.fixture
def tunable(tmp_path):
    """A recipe with ranges; a trial takes a second."""
    (tmp_path / "one.toml").write_text(TUNABLE)
    return str(tmp_path / "one.toml")


@pytest.fixture
def quick_trials(monkeypatch):
    """A trial gives a value at once."""
    monkeypatch.setattr(trials, "train_and_validate", lambda **_: 0.5)
