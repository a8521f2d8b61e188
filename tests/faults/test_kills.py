"""Processes killed, resumed, and compared with one that was not."""

import os
import re
import shutil
import signal
import sys
import tempfile
import time

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from . import kills


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    import pml_ext_train.training  # noqa: F401  # before processes are forked

    return kills.whole_run(kills.SELECTION, tmp_path_factory.mktemp("kills"))


def places_when_resumed(settings, out, at):
    """The places of a copy of a run that is resumed, and its folder."""
    rehearsal = at / f"rehearsal {time.time_ns()}"
    shutil.copytree(out, rehearsal)
    log = rehearsal.with_suffix(".txt")
    assert kills.execute(settings, rehearsal, resume=True, log=log) == 0
    return log.read_text().splitlines(), rehearsal


def place(whole, text, number=1):
    """The number of a place, from 1; the n-th of this name."""
    return [at for at, name in enumerate(whole[1], 1) if name == text][number - 1]


@pytest.mark.nightly
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
    out = tmp_path / "killed"
    assert kills.execute(kills.SELECTION, out, place(whole, *names[0])) == -signal.SIGKILL
    for name, _ in names[1:]:  # killed again, at a place that the resumed run counts anew
        places, _ = places_when_resumed(kills.SELECTION, out, tmp_path)
        assert kills.execute(kills.SELECTION, out, places.index(name) + 1, resume=True) == -signal.SIGKILL
    assert kills.execute(kills.SELECTION, out, resume=True) == 0
    assert kills.difference(whole[0], out) == ""


def test_a_finished_run_writes_no_records_any_more(whole):
    """With ``metrics.json`` a run is finished: what is killed in writing a file of records would stay."""
    rest = whole[1][place(whole, "after replace metrics.json") :]
    assert rest
    assert not [name for name in rest if name.endswith((".csv", "in the database"))]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_signals_leave_a_checkpoint_within_epochs(whole, tmp_path, capfd, number):
    """Right after an iteration, in a validation, and in the test at the end, by turns."""
    out = tmp_path / "stopped"
    at = {
        signal.SIGINT: place(whole, "after iteration or epoch 5"),
        signal.SIGTERM: place(whole, "before an evaluation", 7),  # two each of two tests and a validation before
        signal.SIGHUP: place(whole, "before replace model.pt"),
    }[number]
    assert kills.execute(kills.SELECTION, out, at, how=number) == 128 + number
    error = capfd.readouterr().err.splitlines()[-1]
    assert f"stopped by {number.name}" in error
    assert re.search(rf"resume with the same command and --out {out} .*--resume$", error)
    kept = {path.name for path in (out / "checkpoints").iterdir()}
    assert ("within.pt" in kept) == (number == signal.SIGINT)  # a validation is finished, and last.pt written
    assert kills.execute(kills.SELECTION, out, resume=True) == 0
    assert kills.difference(whole[0], out) == ""


@pytest.mark.nightly
def test_runs_killed_within_epochs_continue(tmp_path):
    """With clusters of each epoch as labels; twice, the second time after one iteration more."""
    whole, places = kills.whole_run(kills.CLUSTERS, tmp_path)
    out = tmp_path / "killed"
    for iterations in (5, 1):
        at = [number for number, name in enumerate(places, 1) if name.startswith("after iteration or epoch ")]
        assert kills.execute(kills.CLUSTERS, out, at[iterations - 1] + 1, resume=out.exists()) == -signal.SIGKILL
        places, rehearsal = places_when_resumed(kills.CLUSTERS, out, tmp_path)
        assert kills.difference(whole, rehearsal) == ""


SETTINGS = ("schedule.epochs=2", "sampler.iterations=3", "data.split=class", "evaluation.figures=few")
FIT = ["fit", "IMAGES", "--device", "cpu", "--out", "RUN", *(f"--set={setting}" for setting in SETTINGS)]
INDEX = ["index", "RUN", "IMAGES", "--device", "cpu"]
QUERY = ["query", "RUN", "IMAGES", "-o", "OUT/answers.jsonl", "--device", "cpu"]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Six digits in each of 24 classes; twelve train, the fewest on which fit tries its candidates."""
    pytest.importorskip("torchvision")
    digits = load_digits()
    folder = tmp_path_factory.mktemp("images")
    for label in range(24):
        place = folder / f"class{label:02d}"
        place.mkdir()
        for number in np.flatnonzero(digits.target == label % 10)[6 * (label // 10) :][:6].tolist():
            pixels = np.kron(digits.images[number] * 15, np.ones((4, 4))).astype(np.uint8)
            Image.fromarray(pixels).convert("RGB").save(place / f"{number}.png")
    return folder


def do(line, place, images, **settings):
    """Do a command in a process of its own whose files all lie below ``place``; return how it has ended."""
    from pml_ext_train.cli import main

    def work():
        os.environ |= {"XDG_CACHE_HOME": str(place / "cache"), "TMPDIR": str(place / "temporary")}
        tempfile.tempdir = None  # this process has asked for it before
        folders = {"IMAGES": images, "RUN": place / "run", "OUT/answers.jsonl": place / "out" / "answers.jsonl"}
        sys.argv = ["pml-ext", *(str(folders.get(word, word)) for word in line)]
        main()

    (place / "temporary").mkdir(parents=True, exist_ok=True)
    return kills.in_a_fork(work, **settings)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("before", "line", "again"), [([], FIT, ["--resume"]), ([FIT, INDEX], QUERY, [])], ids=["fit", "query -o"]
)
def test_a_killed_command_leaves_nothing(tmp_path, images, before, line, again):
    log = tmp_path / "moments.txt"
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for each in before:
        assert do(each, whole, images) == 0
    if before:
        shutil.copytree(whole, killed)
    assert do(line, whole, images, log=log) == 0
    assert do(line, killed, images, at=len(log.read_text().splitlines()) // 3 + 1) == -signal.SIGKILL
    time.sleep(1)  # TensorBoard reads files of events by the second that they began in
    assert do([*line, *again], killed, images) == 0
    assert kills.difference(whole, killed) == ""
