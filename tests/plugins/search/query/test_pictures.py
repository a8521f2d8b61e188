"""Pictures of answers: what is gone or cannot be drawn costs no answer."""

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image


@pytest.fixture
def photos(runs, few, tmp_path):
    """A run with an index of a folder of its own, whose files may go."""
    run = tmp_path / "run"
    place = tmp_path / "photos"
    shutil.copytree(runs[0], run, ignore=shutil.ignore_patterns("collection", "records", "figures", "query.png"))
    shutil.copytree(few[0], place)
    return run, place


@pytest.mark.parametrize(
    "damage",
    [Path.unlink, lambda path: path.rename(path.with_name("other.png")), lambda path: path.write_bytes(b"no image")],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_answers_whose_photograph_is_gone_are_answers(command, photos, damage, as_json):
    run, place = photos
    assert command("index", run, place).returncode == 0
    query = place / "0" / "0000.png"
    (whole,) = json.loads(command("query", run, query, "-k", 5, "--json").stdout)
    assert (whole["picture"], (run / "query.png").exists()) == (None, False)
    damage(place / whole["paths"][2])
    done = command("query", run, query, "-k", 5, *["--json", "--picture", run / "query.png"] * as_json)
    assert done.returncode == 0, done.stderr
    if as_json:
        picture = str(run / "query.png")
        assert json.loads(done.stdout) == [whole | {"picture": picture}]
    else:
        rows = [line.split() for line in done.stdout.splitlines()[2:7]]
        assert [row[2] for row in rows] == whole["paths"]
    assert "pml-ext: warning: the picture has a placeholder for an image" in done.stderr
    assert str(place / whole["paths"][2]) in done.stderr
    gone = not (place / whole["paths"][2]).exists()
    assert ("1 of 5 answers no longer exist" in done.stderr) == gone
    with Image.open(run / "query.png") as picture:
        assert picture.size[0] > 300


def test_a_picture_that_fails_costs_the_picture_alone(command, photos, monkeypatch):
    run, place = photos
    (run / "query.png").unlink(missing_ok=True)  # of a query before
    assert command("index", run, place).returncode == 0
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda *_, **__: 1 / 0)
    done = command("query", run, place / "0" / "0000.png", "-k", 2)
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 4
    assert done.stderr == "pml-ext: warning: no picture: ZeroDivisionError: division by zero\n"
    assert not (run / "query.png").exists()
