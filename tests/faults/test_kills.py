"""Processes killed, resumed, and compared with one that was not."""

import dataclasses
import shutil
import signal

import pytest

from . import kills


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    import pml_ext_train.training  # noqa: F401  # before processes are forked

    return kills.Whole.of(kills.SCENARIOS["selection"], tmp_path_factory.mktemp("kills"))


def places_when_resumed(scenario, out, at):
    """The places of a copy of a run that is resumed, and its folder."""
    log = at / "places.txt"
    rehearsal = at / "rehearsal"
    log.unlink(missing_ok=True)
    shutil.rmtree(rehearsal, ignore_errors=True)
    shutil.copytree(out, rehearsal)
    assert kills.execute(scenario, rehearsal, resume=True, log=log) == 0
    return log.read_text().splitlines(), rehearsal


def place(whole, text, number=1):
    """The number of a place, from 1; the n-th of this name."""
    return [at for at, name in enumerate(whole.places, 1) if name == text][number - 1]


@pytest.mark.parametrize(
    "names",
    [
        [("before replace recipe.toml", 1)],
        [("after prepare", 1)],
        [("before replace last.pt", 2), ("after replace previous.pt", 1)],
        [("after rows of loss_histories in the database", 2)],
        [("after rows in accuracies_test.csv", 1), ("before replace metrics.json", 1)],
    ],
    ids=lambda names: ", ".join(name for name, _ in names),
)
def test_killed_runs_end_like_unkilled_ones(whole, tmp_path, names):
    scenario = kills.SCENARIOS["selection"]
    out = tmp_path / "killed"
    assert kills.execute(scenario, out, place(whole, *names[0])) == -signal.SIGKILL
    for name, _ in names[1:]:  # killed again, at a place that the resumed run counts anew
        places, _ = places_when_resumed(scenario, out, tmp_path)
        assert kills.execute(scenario, out, places.index(name) + 1, resume=True) == -signal.SIGKILL
    assert kills.execute(scenario, out, resume=True) == 0
    assert kills.difference(whole.folder, out) == ""


def test_a_finished_run_writes_no_records_any_more(whole):
    """With ``metrics.json`` a run is finished: what is killed in writing a file of records would stay."""
    rest = whole.places[place(whole, "after replace metrics.json") :]
    assert rest
    assert not [name for name in rest if name.endswith((".csv", "in the database"))]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_signals_leave_a_checkpoint_within_epochs(whole, tmp_path, capfd, number):
    """Right after an iteration, in a validation, and in the test at the end, by turns."""
    scenario = kills.SCENARIOS["selection"]
    out = tmp_path / "stopped"
    at = {
        signal.SIGINT: place(whole, "after iteration or epoch 5"),
        signal.SIGTERM: place(whole, "before an evaluation", 7),  # two each of two tests and a validation before
        signal.SIGHUP: place(whole, "before replace model.pt"),
    }[number]
    assert kills.execute(scenario, out, at, how=number) == 128 + number
    error = capfd.readouterr().err.splitlines()[-1]
    assert f"stopped by {number.name}" in error
    assert f"resume with the same command and --out {out}" in error
    assert error.endswith("--resume")
    kept = {path.name for path in (out / "checkpoints").iterdir()}
    assert ("within.pt" in kept) == (number == signal.SIGINT)  # a validation is finished, and last.pt written
    assert kills.execute(scenario, out, resume=True) == 0
    assert kills.difference(whole.folder, out) == ""


def test_runs_killed_within_epochs_continue(tmp_path):
    """With clusters of each epoch as labels; twice, the second time after one iteration more."""
    clusters = kills.SCENARIOS["clusters"]
    scenario = dataclasses.replace(clusters, overrides=(*clusters.overrides, "engine.checkpoint_minutes=1e-9"))
    whole = kills.Whole.of(scenario, tmp_path)
    out = tmp_path / "killed"
    places = whole.places
    for iterations in (5, 1):
        at = [number for number, name in enumerate(places, 1) if name.startswith("after iteration or epoch ")]
        assert kills.execute(scenario, out, at[iterations - 1] + 1, resume=out.exists()) == -signal.SIGKILL
        places, rehearsal = places_when_resumed(scenario, out, tmp_path)
        assert kills.difference(whole.folder, rehearsal) == ""
