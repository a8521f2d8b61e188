"""``pml-ext labels``."""

import csv
import json
import shutil

import pytest
from PIL import Image


@pytest.fixture
def misfiled(runs, folder, tmp_path, command):
    """A run with an index of a copy of the folder, where the first 7 is among the ones; and that file."""
    run = shutil.copytree(runs[0], tmp_path / "run")
    photos = shutil.copytree(folder, tmp_path / "photos")
    first = sorted((photos / "7").iterdir())[0]
    moved = first.rename(photos / "1" / first.name)
    assert command("index", run, photos).returncode == 0
    return run, f"1/{moved.name}"


def test_labels_lists_and_writes_a_misfiled_image(misfiled, tmp_path, command):
    run, wrong = misfiled
    table, sheet = tmp_path / "labels.csv", tmp_path / "labels.png"
    done = command("labels", run, "-n", 5, "--csv", table, "--sheet", sheet, "--json")
    found = json.loads(done.stdout)
    first = next(row for row in found["labels"] if row["path"] == wrong)
    assert (first["class"], first["likely"]) == ("1", "7")
    assert found["images"] == 200
    rows = list(csv.DictReader(table.open()))
    assert len(rows) == 200
    assert rows[0]["path"] == found["labels"][0]["path"]
    assert Image.open(sheet).width > 100
    shown = command("labels", run, "-n", 3).stdout
    assert f"more similar to another class: {found['suspicious']} of 200 images" in shown


def test_labels_refuses_a_table_without_groups(misfiled, tmp_path, command):
    run, wrong = misfiled
    table = tmp_path / "groups.csv"
    assert (
        "no such file; wanted a table with the columns path and group"
        in command("labels", run, "--groups", table).stderr
    )
    table.write_text(f"path,burst\n{wrong},a\n")
    assert "found the columns path, burst; wanted path and group" in command("labels", run, "--groups", table).stderr
    table.write_text("path,group\n1/nosuch.png,a\n")
    assert "1/nosuch.png: not indexed (1 of 1 paths)" in command("labels", run, "--groups", table).stderr
    table.write_text(f"path,group\n{wrong},a\n")
    assert command("labels", run, "--groups", table, "--json").returncode == 0
