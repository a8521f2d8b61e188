"""Tuning: equally many trials for every recipe, validation classes alone, shared by processes, resumed where killed."""

import json
from contextlib import closing
from unittest.mock import Mock

import pytest
import torch

from pml_ext.errors import ConfigError, DataError, StoppedError
from pml_ext_compare import trials
from pml_ext_compare.job_queue import do
from pml_ext_compare.jobs import Executor, JobResult
from pml_ext_compare.processes import Processes
from pml_ext_compare.trials import TrialJob
from pml_ext_compare.tuning import studies_of, trial_jobs, tuned
from pml_ext_train.recipe import load_recipes
from pml_ext_train.training import validation

from ...overrides import typed
from .examples import TUNABLE, compare, finish, silent, states

pytest.importorskip("optuna")


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ('"optimizer.lr" = { low = 1, high = 0.1 }', "found low = 1, high = 0.1; wanted the smaller first"),
        ('"optimizer.lr" = { low = 0.0, high = 0.1, log = true }', "found low = 0.0 with log = true"),
        ('"optimiser.lr" = { low = 0.0, high = 0.1 }', "tune.optimiser.lr: no table 'optimiser'"),
        ('"schedule.epoch" = { low = 1, high = 2 }', "tune.schedule.epoch: no key of"),
    ],
)
def test_wrong_ranges_of_keys_are_refused(tunable, tmp_path, table, text):
    (tmp_path / "wrong.toml").write_text(f'extends = "one.toml"\n[tune]\n{table}\n')
    with pytest.raises(ConfigError, match=text):
        load_recipes(str(tmp_path / "wrong.toml"))


def test_trials_see_validation_classes_and_are_reproducible(tunable, tmp_path, monkeypatch):
    evaluate = Mock(wraps=validation.evaluate_split)
    monkeypatch.setattr(validation, "evaluate_split", evaluate)
    found = []
    for place in ("one", "two"):
        (study,) = studies_of(tunable, tmp_path / place, trials=3)
        assert finish(study) == {}
        found.append(study.about())
        assert trial_jobs([study], "cpu", None) == []  # none is left to do
    assert {call.args[1] for call in evaluate.call_args_list} == {"validation"}
    first, second = ([(each["values"], each["value"]) for each in about["trials"]] for about in found)
    assert first == second
    assert first[0][0] == {"optimizer.lr": 1e-3, "loss.neg_margin": 1, "sampler.m": 2}  # the recipe's own
    assert max(value for _, value in first if value is not None) == max(
        each["value"] for each in found[0]["trials"] if each["values"] == found[0]["best"]
    )
    assert not list(study.place.rglob("*.pt"))


@pytest.mark.usefixtures("without_report")
def test_the_command_tunes_marks_and_saves(tunable, tmp_path, monkeypatch):
    monkeypatch.setattr("pml_ext_compare.page.compare_queries", lambda *_: ([], []))
    out = tmp_path / "out"
    value = json.loads(compare(tunable, "--out", out, "--tune", 2, "--save-recipe", "--json").stdout)
    (row,) = value["recipes"]
    (about,) = value["tuning"]
    assert (row["trials"], row["selection"]) == (2, "trials: validation classes; last epoch")
    assert len(about["trials"]) == 2
    (saved,) = out.glob("*-tuned.toml")
    (best_recipe,) = load_recipes(str(saved)).values()
    assert best_recipe.optimizer.lr == about["best"]["optimizer.lr"]
    assert best_recipe.loss.settings["neg_margin"] == about["best"]["loss.neg_margin"]
    assert "Best: optimizer.lr" in (out / "comparison.html").read_text()
    folder = out.joinpath(row["folders"]["0"]).parent
    both = json.loads(compare(tunable, folder, "--out", out, "--json").stdout)
    unequal = {each["trials"]: each["unequal_settings"] for each in both["recipes"]}
    assert unequal == {0: [], 2: [f"trials: 2 (0 in {both['differences_from']})"]}
    with pytest.raises(ConfigError, match=r"cbml/digits has no \[tune\] table"):
        studies_of("cbml/digits", out, 2)


def test_a_setting_wrong_for_every_trial_ends_all(tunable, tmp_path):
    wrong = typed(["sampler={name='shuffle', batch_size=5000}"])
    (study,) = studies_of(tunable, tmp_path, trials=9, overrides=wrong)
    said = []
    for _ in range(2):  # the command says it again
        with pytest.raises(ConfigError, match=r"sampler: .* batches of 5000 need more than the"):
            finish(study, on_progress=lambda job, text: said.append(text))
    assert states(study) == ["RUNNING"]
    assert [text for text in said if isinstance(text, str)] == []


def test_fewer_trials_ignore_those_of_longer_tunings(tunable, tmp_path, monkeypatch):
    values = [0.1, 0.4, 0.2, 0.9, 0.3, 0.5]
    monkeypatch.setattr(trials, "train_and_validate", Mock(side_effect=values))
    (longer,) = studies_of(tunable, tmp_path, trials=6)
    assert finish(longer) == {}
    (shorter,) = studies_of(tunable, tmp_path, trials=3)
    assert shorter.place == longer.place
    assert trial_jobs([shorter], "cpu", None) == []
    assert [trial["value"] for trial in shorter.about()["trials"]] == values[:3]
    by_value = {trial["value"]: trial["values"] for trial in longer.about()["trials"]}
    assert (shorter.best(), longer.best()) == (by_value[0.4], by_value[0.9])


class Killing(Executor):
    """An executor whose workers die, in place of the trial's training; ``deaths`` by number of the job."""

    def __init__(self, deaths):
        super().__init__()
        self.deaths = deaths

    def ended(self, on_progress):
        for job in [*self.running]:
            if self.deaths.get(job.number, 0) > 0:
                self.deaths[job.number] -= 1
                yield self.running.pop(job), JobResult(died=True)
        yield from super().ended(on_progress)


@pytest.mark.usefixtures("quick_trials")
def test_jobs_that_die_are_made_again(tunable, tmp_path):
    studies = studies_of(tunable, tmp_path, trials=3)
    begun = []
    recipes, failed = tuned(studies, Killing({0: 2}), silent, begin=begun.append)
    assert (begun, failed) == ([3, 1], [])
    assert recipes[tunable].loss.settings["neg_margin"] == studies[0].best()["loss.neg_margin"]
    studies = studies_of(tunable, tmp_path / "again", trials=3)
    recipes, (row,) = tuned(studies, Killing({0: 99, 1: 99, 2: 99}), silent)
    assert recipes == {}
    (error,) = row.errors.values()
    assert error.startswith("0 of 3 trials have ended; repeat the command to run the others (its worker died 2 times")


def test_trials_do_not_read_the_file_again(tunable, tmp_path, monkeypatch):
    studies = studies_of(tunable, tmp_path / "out", trials=1)
    train = Mock(return_value=0.5)
    monkeypatch.setattr(trials, "train_and_validate", train)
    (tmp_path / "one.toml").write_text(TUNABLE.replace("width = 8", "width = 16"))
    recipes, _ = tuned(studies, Executor(), silent)
    assert train.call_args.kwargs["recipe"].model.trunk.settings["width"] == 8
    assert recipes[tunable].model.trunk.settings["width"] == 8


def test_trials_test_only_held_out_validation_classes(tunable, tmp_path):
    chosen = ["evaluation.validation=0.5", "evaluation.select=nmi"]
    left_out = ["evaluation.validation_trains=true", "evaluation.test_every=1"]
    (study,) = studies_of(tunable, tmp_path, trials=1, overrides=typed([*chosen, *left_out]))
    evaluation = study.recipe.evaluation
    assert (evaluation.validation, evaluation.select) == (0.5, "nmi")
    assert (evaluation.validation_trains, evaluation.test_every) == (False, 0)
    assert study.own_recipe.evaluation.validation_trains


def test_a_cut_journal_keeps_its_complete_lines(tunable, tmp_path):
    (study,) = studies_of(tunable, tmp_path, trials=2)
    assert finish(study, 1) == {}
    assert states(study) == ["COMPLETE"]
    journal = study.place / "journal.log"
    whole = journal.read_bytes()
    journal.write_bytes(whole + whole.splitlines()[-1][:-5])
    with pytest.warns(UserWarning, match=r"journal.log: its last line was incomplete and is dropped"):
        assert states(study) == ["COMPLETE"]
    assert journal.read_bytes().startswith(whole + b"{")
    assert finish(study) == {}
    assert len(states(study)) == 2
    journal.write_bytes(b"no journal\n" + whole)
    with pytest.raises(DataError, match=r"journal.log: not Optuna's journal .*; delete it to start the trials again"):
        study.optuna_study()


@pytest.mark.usefixtures("quick_trials")
def test_ranges_of_whole_ends_may_be_floats(tunable, tmp_path):
    text = TUNABLE.replace("low = 0.2, high = 2.0", "low = 0, high = 2").replace("choices = [2]", "low = 2, high = 4")
    (tmp_path / "one.toml").write_text(text + "[loss]\nneg_margin = 0.5\n")
    (study,) = studies_of(tunable, tmp_path, trials=2)
    assert finish(study) == {}
    first, second = study.optuna_study().get_trials()
    assert first.params["loss.neg_margin"] == 0.5
    assert type(second.params["loss.neg_margin"]) is float
    assert type(second.params["sampler.m"]) is int


@pytest.mark.usefixtures("quick_trials")
def test_a_killed_start_does_not_block_studies(tunable, tmp_path):
    (study,) = studies_of(tunable, tmp_path, trials=1)
    study.optuna_study().enqueue_trial({"loss.neg_margin": 1})  # then killed, before study.ask
    assert states(study) == ["WAITING"]
    assert finish(study) == {}
    assert states(study) == ["COMPLETE"]
    (study,) = studies_of(tunable, tmp_path / "other", trials=2)
    study.optuna_study().ask()  # then killed, before it has drawn values
    assert finish(study) == {}
    assert states(study) == ["FAIL", "COMPLETE"]


@pytest.mark.usefixtures("quick_trials")
def test_a_saved_recipe_keeps_a_components_settings(tunable, tmp_path):
    (tmp_path / "one.toml").write_text(TUNABLE + '"optimizer.name" = { choices = ["sgd"] }\n')
    (study,) = studies_of(tunable, tmp_path, trials=1)
    assert finish(study) == {}
    (saved,) = load_recipes(str(study.save_recipe(tmp_path))).values()
    assert (saved.optimizer.name, saved.optimizer.lr) == ("sgd", study.best()["optimizer.lr"])


@pytest.mark.nightly
def test_two_processes_on_one_journal_share_the_trials(tunable, tmp_path):
    (study,) = studies_of(tunable, tmp_path, trials=3)
    jobs = [TrialJob(study, number, "cpu", None) for number in range(6)]  # twice as many
    with closing(Processes(2)) as executor:
        assert do(jobs, executor, silent) == {}
    assert len(states(study)) == 3
    assert {*states(study)} <= {"COMPLETE", "PRUNED"}
    assert len({each.params["loss.neg_margin"] for each in study.optuna_study().get_trials()}) == 3


def test_a_trial_that_was_ended_goes_on(tunable, tmp_path):
    (study,) = studies_of(tunable, tmp_path, trials=2)
    with pytest.raises(StoppedError):
        finish(study, 1, Mock(side_effect=StoppedError(15, "stopped")))
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
    failures = [torch.OutOfMemoryError("out of memory"), OSError(28, "No space left on device")]
    monkeypatch.setattr(trials, "train_and_validate", Mock(side_effect=failures))
    said = []
    assert finish(study, 1, lambda job, text: said.append(text)) == {}
    assert states(study) == ["FAIL"]
    assert any("trial 1 of 2 failed: OutOfMemoryError: out of memory" in str(text) for text in said)
    (error,) = finish(study, 1).values()
    assert "No space left on device" in error
    assert states(study) == ["FAIL", "RUNNING"]  # goes on later
    monkeypatch.undo()
    assert finish(study) == {}
    assert states(study) == ["FAIL", "COMPLETE"]


def test_a_trial_that_is_killed_repeatedly_fails(tunable, tmp_path, monkeypatch):
    (study,) = studies_of(tunable, tmp_path, trials=2)

    job = TrialJob(study, 0, "cpu", None)

    def dying(**_):
        (job.folder(0) / "deaths").rename(tmp_path / "kept")  # a killed process leaves it
        raise KeyboardInterrupt

    monkeypatch.setattr(trials, "train_and_validate", dying)
    for _ in range(trials.DEATHS):
        with pytest.raises(KeyboardInterrupt):
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
