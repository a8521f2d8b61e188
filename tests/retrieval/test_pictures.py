"""Pictures of answers: what is gone or cannot be drawn costs no answer."""

import json
import os
import shutil
from pathlib import Path

import pytest
from PIL import Image

from pml_ext import load_run


@pytest.fixture
def photos(runs, few, tmp_path):
    """A run with an index of a folder of its own, whose files may go."""
    run, place = tmp_path / "run", tmp_path / "photos"
    shutil.copytree(runs[0], run, ignore=shutil.ignore_patterns("index", "records", "figures"))
    shutil.copytree(few[0], place)
    return run, place


def captions(figure):
    """The texts of a picture, in the order in which they were written."""
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_two_runs_side_by_side(runs, indexed, folder, tmp_path):
    other = load_run(runs[1], "cpu")
    with pytest.warns(UserWarning, match="skipped"):
        theirs = other.index(folder, tmp_path / "index")
    run, gallery = indexed
    query = folder / gallery.embedded.paths[0]
    beside = [("other", other.query(query, 4, theirs), theirs.embedded.folder)]
    figure = run.picture(run.query(query, 4), gallery, beside)
    titles = captions(figure)
    assert titles[0].endswith("one")
    assert titles[5].endswith("other")
    assert all(title[0] in "✓✗" for title in titles[1:5])


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.rename(path.with_name("other.png")),
                                    lambda path: path.write_bytes(b"no image")])  # fmt: skip
@pytest.mark.parametrize("as_json", [False, True])
def test_answers_whose_photograph_is_gone_are_answers(command, photos, damage, as_json):
    run, place = photos
    assert command("index", run, place).returncode == 0
    query = place / "0" / "0000.png"
    (whole,) = json.loads(command("query", run, query, "-k", 5, "--json").stdout)
    (run / "query.png").unlink()
    damage(place / whole["paths"][2])
    done = command("query", run, query, "-k", 5, *["--json"] * as_json)
    assert done.returncode == 0, done.stderr
    if as_json:
        assert json.loads(done.stdout) == [whole]
    else:
        rows = [line.split() for line in done.stdout.splitlines()[2:7]]
        assert [row[2] for row in rows] == whole["paths"]
    assert "pml-ext: warning: the picture has a placeholder for an image" in done.stderr
    assert str(place / whole["paths"][2]) in done.stderr
    with Image.open(run / "query.png") as picture:
        assert picture.size[0] > 300


def test_odd_names_are_answers_and_captions(command, photos):
    """Mathematics, markup and bytes that are no text, in names of classes and of files."""
    run, place = photos
    names = ["$x^$.png", "price $5_$6.png", "[b]bold[b].png", os.fsdecode(b"caf\xe9.png")]
    (place / "0").rename(place / "$_0$")
    files = sorted((place / "$_0$").glob("*.png"))
    try:
        for name in names:
            shutil.copy(files[0], place / "$_0$" / name)
    except OSError:
        pytest.skip("this file system wants names that are text")
    assert command("index", run, place).returncode == 0
    for query in (files[0], *((place / "$_0$" / name) for name in names)):
        done = command("query", run, query, "-k", 4, "--json")
        assert done.returncode == 0, done.stderr
        (answer,) = json.loads(done.stdout)
        assert answer["query"] == str(query)
        assert len({Path(path).name for path in answer["paths"]} & {*names, files[0].name} - {query.name}) == 4
        done = command("query", run, query, "-k", 4)
        assert (done.returncode, len(done.stdout.splitlines()) >= 6, done.stderr) == (0, True, "")
        assert done.stdout.splitlines()[-1] == f"picture: {run / 'query.png'}"
        assert "$_0$/price $5_$6.png" in done.stdout or query.name == "price $5_$6.png"
    trained = load_run(run, "cpu")
    titles = " ".join(captions(trained.picture(trained.query(files[0], 4))))
    assert all(name in titles for name in names)
    assert command("cluster", run, place, "--clusters", 3).returncode == 0
    assert rb"$_0$/caf" + b"\xe9.png" in (run / "clusters" / "clusters.csv").read_bytes()


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


def test_a_picture_has_the_nearest_of_many(indexed, folder):
    run, gallery = indexed
    answers = run.query(folder / gallery.embedded.paths[0], 150)
    (axes,) = run.picture(answers, gallery).axes
    assert len(axes.images) == 51
