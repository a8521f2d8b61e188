"""Pictures of answers: what is gone or cannot be drawn costs no answer."""

import json
import os
import shutil
from pathlib import Path

import pytest
from PIL import Image

from pml_ext import load_run
from pml_ext.errors import DataError
from pml_ext.evaluation.fonts import drawable
from pml_ext.retrieval import thumbnail


@pytest.fixture
def photos(runs, few, tmp_path):
    """A run with an index of a folder of its own, whose files may go."""
    run, place = tmp_path / "run", tmp_path / "photos"
    shutil.copytree(runs[0], run, ignore=shutil.ignore_patterns("collection", "records", "figures", "query.png"))
    shutil.copytree(few[0], place)
    return run, place


def captions(figure):
    """The texts of a picture, in the order in which they were written."""
    return [text.get_text() for axes in figure.axes for text in axes.texts]


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
    assert ("1 of 5 answers are gone since they were indexed" in done.stderr) == gone
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
    assert all(drawable(name) in titles for name in names)
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
    (axes,) = run.picture(answers).axes
    assert len(axes.images) == 51


def test_many_queries_are_drawn_as_far_as_they_fit(indexed, folder):
    run, gallery = indexed
    queries = [folder / path for path in gallery.embedded.paths[:25]]
    with pytest.warns(UserWarning, match="the picture has the first 11 of 25 queries"):
        (axes,) = run.picture(run.query(queries, 50)).axes
    assert len(axes.images) == 11 * 51


def test_captions_have_class_and_name(indexed, folder):
    run, gallery = indexed
    query = folder / gallery.embedded.paths[0]
    (answer,) = answers = run.query(query, 3)
    texts = captions(run.picture(answers))
    assert texts[0] == f"{query.name}\n{query.parent.name}"
    for text, path, distance, name in zip(texts[1:], answer.paths, answer.distances, answer.classes, strict=True):
        mark = "✓" if name == query.parent.name else "✗"
        assert text == f"{mark} {distance:.2f}\n{name}\n{Path(path).name}"


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_thumbnail_of_a_photograph_is_decoded_small(tmp_path, mode, monkeypatch):
    """Upright, of the photograph's shape, from an eighth of its pixels."""
    path, exif = tmp_path / "im $1_3.jpg", Image.Exif()
    exif[0x0112] = 6  # turned
    colors = {"RGB": (200, 30, 30), "L": 90, "CMYK": (0, 255, 0, 0)}
    Image.new(mode, (4000, 3000), colors[mode]).save(path, exif=exif)
    decoded = []
    shrink = Image.Image.thumbnail
    monkeypatch.setattr(
        Image.Image, "thumbnail", lambda image, *a, **b: decoded.append(image.size) or shrink(image, *a, **b)
    )
    small = thumbnail(path)
    assert (small.mode, small.size) == ("RGB", (165, 220))
    assert decoded == [(375, 500)]
    assert thumbnail(path, channels=1, longest=60).size == (45, 60)


def test_what_has_no_thumbnail_says_why(tmp_path):
    (tmp_path / "cut.jpg").write_bytes(b"\xff\xd8\xff")
    for name, why in (("cut.jpg", "not a readable image"), ("gone.jpg", "no such file"), ("a" * 300, "too long")):
        with pytest.raises(DataError, match=why):
            thumbnail(tmp_path / name)
