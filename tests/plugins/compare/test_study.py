"""Studies: their journal, ranges and best values."""

import pytest

from pml_ext.errors import DataError
from pml_ext_compare.tuning import studies_of
from pml_ext_train.recipe import load_recipes

from .examples import TUNABLE, finish, states

pytest.importorskip("optuna")


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
def test_ranges_of_whole_ends_may_be_floats(tmp_path):
    text = TUNABLE.replace("low = 0.2, high = 2.0", "low = 0, high = 2").replace("choices = [2]", "low = 2, high = 4")
    (tmp_path / "one.toml").write_text(text + "[loss]\nneg_margin = 0.5\n")
    (study,) = studies_of(str(tmp_path / "one.toml"), tmp_path, trials=2)
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
def test_a_saved_recipe_keeps_a_components_settings(tmp_path):
    ranges = '"optimizer.name" = { choices = ["sgd"] }\n'
    (tmp_path / "one.toml").write_text(TUNABLE + ranges)
    (study,) = studies_of(str(tmp_path / "one.toml"), tmp_path, trials=1)
    assert finish(study) == {}
    (saved,) = load_recipes(str(study.save_recipe(tmp_path))).values()
    assert (saved.optimizer.name, saved.optimizer.lr) == ("sgd", study.best()["optimizer.lr"])
