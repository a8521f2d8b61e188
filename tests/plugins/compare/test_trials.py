"""The trials of a study: shared, resumed, failed."""

from contextlib import closing
from unittest.mock import Mock

import pytest
import torch

from pml_ext.errors import ConfigError, StoppedError
from pml_ext_compare import trials
from pml_ext_compare.job_queue import do
from pml_ext_compare.jobs import Executor
from pml_ext_compare.processes import Processes
from pml_ext_compare.trials import TrialJob
from pml_ext_compare.tuning import studies_of

from .examples import TUNABLE, finish, silent, states

pytest.importorskip("optuna")


@pytest.mark.slow
def test_two_processes_on_one_journal_share_the_trials(tunable, tmp_path):
    (study,) = studies_of(tunable, tmp_path, trials=3)
    jobs = [TrialJob(study, number, "cpu", None) for number in range(6)]  # twice as many
    with closing(Processes(2)) as executor:
        assert do(jobs, executor, silent) == {}
    trials = study.optuna_study().get_trials()
    assert len(trials) == 3
    assert {each.state.name for each in trials} <= {"COMPLETE", "PRUNED"}
    assert len({each.params["loss.neg_margin"] for each in trials}) == 3


def test_a_trial_that_was_ended_goes_on(tunable, tmp_path):
    (study,) = studies_of(tunable, tmp_path, trials=2)

    def stop(job, said):
        raise StoppedError(15, "stopped")

    with pytest.raises(StoppedError):
        do([TrialJob(study, 0, "cpu", None)], Executor(), stop)
    assert states(study) == ["RUNNING"]
    assert finish(study) == {}
    assert states(study) == ["COMPLETE", "COMPLETE"]


def test_wrong_values_fail_a_single_trial(tunable, tmp_path):
    ranges = '"sampler.m" = { choices = [2, 3] }'  # three do not divide a batch of four
    text = TUNABLE.replace('"sampler.m" = { choices = [2] }', ranges).replace('"loss.neg_margin"', '"loss.pos_margin"')
    (tmp_path / "one.toml").write_text(text.replace("low = 0.2, high = 2.0", "low = 0.0, high = 0.2"))
    (study,) = studies_of(tunable, tmp_path, trials=4)
    assert finish(study) == {}
    assert states(study)[0] == "COMPLETE"
    assert "FAIL" in states(study)


def test_values_that_raise_anything_count_as_a_trial(tunable, tmp_path, monkeypatch):
    (study,) = studies_of(tunable, tmp_path, trials=2)
    monkeypatch.setattr(trials, "train_and_validate", Mock(side_effect=torch.OutOfMemoryError("out of memory")))
    said = []
    assert finish(study, 1, lambda job, text: said.append(text)) == {}
    assert states(study) == ["FAIL"]
    assert any("trial 1 of 2 failed: OutOfMemoryError: out of memory" in str(text) for text in said)
    monkeypatch.setattr(trials, "train_and_validate", Mock(side_effect=OSError(28, "No space left on device")))
    (error,) = finish(study, 1).values()
    assert "No space left on device" in error
    assert states(study) == ["FAIL", "RUNNING"]  # goes on later
    monkeypatch.undo()
    assert finish(study) == {}
    assert states(study) == ["FAIL", "COMPLETE"]


def test_a_trial_that_is_killed_repeatedly_fails(tunable, tmp_path, monkeypatch):
    (study,) = studies_of(tunable, tmp_path, trials=2)

    class Died(BaseException):
        """In place of a kill: it leaves what a killed process leaves."""

    job = TrialJob(study, 0, "cpu", None)

    def dying(**_):
        (job.folder(0) / "deaths").rename(tmp_path / "kept")
        raise Died

    monkeypatch.setattr(trials, "train_and_validate", dying)
    for _ in range(trials.DEATHS):
        with pytest.raises(Died):
            job.do(print)
        (tmp_path / "kept").rename(job.folder(0) / "deaths")
    assert states(study) == ["RUNNING"]
    monkeypatch.undo()
    said = []
    job.do(said.append)
    assert states(study) == ["FAIL"]
    assert "its process was killed 3 times, perhaps for lack of memory" in said[-1]
    assert finish(study) == {}
    assert states(study) == ["FAIL", "COMPLETE"]


def test_a_drawn_first_trial_may_fail_alone(tunable, tmp_path, monkeypatch):
    """The recipe's own value is not in the range, so that the first trial does not tell that all would fail."""
    text = TUNABLE.replace('"sampler.m" = { choices = [2] }', '"sampler.m" = { choices = [3, 4] }')
    (tmp_path / "one.toml").write_text(text)
    (study,) = studies_of(tunable, tmp_path, trials=3)
    assert not study.begins_with_own_values()
    monkeypatch.setattr(trials, "train_and_validate", Mock(side_effect=ConfigError("three do not divide four")))
    assert finish(study) == {}
    assert states(study) == ["FAIL"] * 3
