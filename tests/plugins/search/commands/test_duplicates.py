"""The table of copies of ``pml-ext query --duplicates``."""

import json
import shutil

import pytest


@pytest.fixture
def place(make, few, tmp_path):
    """The run, and the collection of a folder in which an image lies twice."""
    run = make()
    images = shutil.copytree(few[0], tmp_path / "images")
    shutil.copy(sorted(images.glob("*/*.png"))[0], images / "copy $1_3.png")
    return run.folder, "--store", run.index(images).place


def test_copies_are_printed(command, place):
    done = command("query", "--duplicates", *place, "--radius", 1e-3)
    assert done.returncode == 0, done.stderr
    rows = done.stdout.splitlines()
    assert rows[0].split() == ["group", "copies", "distance", "pixels", "bytes", "path"]
    assert "largest" in rows[2]
    assert "copy $1_3.png" in done.stdout
    last = "1 group of 2 of 21 images: 1 of the same bytes, 0 near, within 0.001 (--radius); the nearest other is at"
    assert last in " ".join(done.stdout.split())


def test_a_radius_that_is_given_is_in_json(command, place):
    told = json.loads(command("query", "--duplicates", *place, "--radius", 1e-3, "--json").stdout)
    assert (told["radius"], told["made_up_copies"]) == (0.001, 0)
    (group,) = told["groups"]
    assert group["kind"] == "exact"
    assert "copy $1_3.png" in {image["path"] for image in group["images"]}
    assert (group["images"][0]["width"], group["images"][0]["height"]) == (8, 8)


def test_the_radius_is_chosen_by_made_up_copies(command, place):
    told = json.loads(command("query", "--duplicates", *place, "--json").stdout)
    assert told["made_up_copies"] == 21 * 8
    assert 0 < told["radius"] < told["nearest_other"]
    assert "which holds most of 168 made-up copies" in " ".join(command("query", "--duplicates", *place).stdout.split())
