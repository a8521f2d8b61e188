"""``pml-ext identify`` and ``enroll``: what is printed, as text and JSON."""

import json
import shlex
import shutil

import pytest

from ..conftest import write_digits


@pytest.fixture(scope="module")
def identified(runs, tmp_path_factory):
    """A run with an index of classes that it was not trained on, by their names, and photographs."""
    place = tmp_path_factory.mktemp("identify command")
    run = shutil.copytree(runs[0], place / "run", ignore=lambda *_: ["collection"])
    write_digits(place / "digits", range(100))
    for digit in range(10):
        part = "enrolled" if digit < 6 else "others"
        shutil.copytree(place / "digits" / str(digit), place / part / f"séal {digit}")
    shutil.rmtree(place / "digits")
    return run, place


def test_calibrating_identifying_scoring_and_enrolling(command, identified):
    run, place = identified
    command("index", run, place / "enrolled")
    calibrated = json.loads(command("identify", run, "--far", "0.3", "--json").stdout)
    assert (calibrated["far"], calibrated["classes"], calibrated["nearest"]) == (0.3, 6, "center")
    assert "Threshold 0." in command("identify", run).stdout

    photographs = sorted((place / "others").rglob("*.png"))[:3]
    done = command("identify", run, *photographs, place / "enrolled" / "séal 0", "-k", "2", "--json")
    answers = json.loads(done.stdout)
    assert "Threshold" not in done.stderr  # it is kept
    assert len(answers) == 3 + len(list((place / "enrolled" / "séal 0").iterdir()))
    for answer in answers:
        assert list(answer) == ["query", "known", "name", "classes", "distances", "paths", "threshold"]
        assert len(answer["classes"]) == len(answer["paths"]) == 2
        assert answer["known"] == (answer["distances"][0] <= calibrated["threshold"]) == (answer["name"] is not None)
    text = command("identify", run, *photographs, "--radius", "2").stdout
    assert "3 known, 0 new: a known one is within 2 of a class" in text

    scored = json.loads(command("identify", run, place / "others", "--score", "--json").stdout)
    assert (scored["known"], scored["new"]) == (0, len(list((place / "others").rglob("*.png"))))
    assert scored["metrics"].keys() == {"accuracy", "false_acceptance_rate", "balanced_accuracy_new"}
    assert "New ones that are taken for known" in command("identify", run, place / "others", "--score").stdout

    enrolled = command("enroll", run, place / "others" / "séal 7", "--as", "Séal 7")
    assert "Séal 7 enrolled" in enrolled.stdout
    assert "the threshold of known or new is out of date; type: pml-ext identify" in enrolled.stderr
    assert "to undo: rm -- " in enrolled.stdout
    again = json.loads(command("enroll", run, place / "others" / "séal 7", "--as", "Séal 7", "--json").stdout)
    assert again["copied"] == []
    assert again["changes"]["new"] == 0
    after = command("identify", run, photographs[0], "--json")
    assert "known or new is calibrated again: the enrolled images have changed" in after.stderr


def test_changes_of_classes_print_how_to_undo_them(command, identified):
    run, place = identified
    command("index", run, place / "others")
    photographs = sorted((place / "others" / "séal 7").glob("*.png"))
    changed = command("enroll", run, "--join", "séal 7", "séal 8")
    assert f"{len(photographs)} photographs of séal 7 moved to" in changed.stdout
    undo = changed.stdout.strip().rpartition("to undo: pml-ext ")[2]
    assert shlex.split(undo) == ["enroll", str(run), "--undo", "1"]
    undone = json.loads(command(*shlex.split(undo), "--json").stdout)
    assert (undone["old"], undone["new"], undone["photographs"]) == ("séal 8", "séal 7", len(photographs))
    assert sorted((place / "others" / "séal 7").glob("*.png")) == photographs
    for arguments, text in (
        ([], "no class is named; type: pml-ext enroll"),
        (["--remove", "séal 7", "--as", "séal 7"], "--undo and PHOTO --as NAME exclude each other"),
        (["--rename", "séal 7", "séal 8"], "exists; to join the two, type: pml-ext enroll"),
    ):
        assert text in " ".join(command("enroll", run, *arguments).stderr.split())
