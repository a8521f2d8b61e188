"""Jobs of SLURM, by submitit."""

import importlib.util
from types import SimpleNamespace

import pytest

from pml_ext.errors import ConfigError
from pml_ext_compare import on_slurm
from pml_ext_compare.on_slurm import OnSlurm, minutes_of

from .examples import Sleeper, jobs, metrics, silent


class TimedOut:
    """A job that submitit ends, as it does where a job was requeued too often."""

    name = "timed out"

    def do(self, on_progress):
        from submitit.core.utils import UncompletedJobError

        raise UncompletedJobError("timed-out too many times")


@pytest.mark.skipif(importlib.util.find_spec("submitit") is None, reason="submitit is not installed")
def test_stopping_cancels_jobs_of_submitit(tmp_path):
    executor = OnSlurm(1, tmp_path / "slurm")
    executor.start(Sleeper())
    executor.stop()
    results = []
    while executor.running:
        results += [result for _, result in executor.ended(silent)]
    assert results[0].died or results[0].stopped


@pytest.mark.skipif(importlib.util.find_spec("submitit") is None, reason="submitit is not installed")
def test_submitit_gives_the_same_numbers(tmp_path, here):
    assert metrics(jobs(tmp_path), OnSlurm(1, tmp_path / "slurm")) == here[:1]


@pytest.mark.skipif(importlib.util.find_spec("submitit") is None, reason="submitit is not installed")
def test_submitit_without_slurm_gives_jobs_their_time(tmp_path):
    from submitit.core.utils import DelayedSubmission, UncompletedJobError

    a_day = 24 * 60
    executor = OnSlurm(1, tmp_path / "slurm")
    assert executor._executor._executor.parameters["timeout_min"] > a_day
    with pytest.raises(UncompletedJobError):  # raised in the job, where submitit requeues it no more
        DelayedSubmission(on_slurm._Submitted(TimedOut())).result()


def test_time_limits_of_sbatch_in_minutes():
    limits = {"90": 90, "90:30": 91, "1:30:00": 90, "1-12": 36 * 60, "1-12:30": 36 * 60 + 30, "0-0:0:1": 1}
    assert {text: minutes_of(text) for text in limits} == limits
    with pytest.raises(ConfigError, match="SBATCH_TIMELIMIT=a day: wanted minutes"):
        minutes_of("a day")


@pytest.mark.skipif(importlib.util.find_spec("submitit") is None, reason="submitit is not installed")
@pytest.mark.parametrize(("limit", "minutes"), [("1:30:00", 90), ("UNLIMITED", 525_600), ("0", 525_600)])
def test_jobs_have_the_time_limit_of_sbatch(tmp_path, monkeypatch, limit, minutes):
    import submitit

    given = {}
    executor = SimpleNamespace(cluster="slurm", update_parameters=lambda **settings: given.update(settings))
    monkeypatch.setattr(submitit, "AutoExecutor", lambda folder: executor)
    monkeypatch.setenv("SBATCH_TIMELIMIT", limit)
    OnSlurm(1, tmp_path)
    assert given == {"timeout_min": minutes}
