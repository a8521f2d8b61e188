"""``pml-ext select``: tables, a contact sheet, JSON."""

import csv
import json

import numpy as np
import pytest

from pml_ext_search.select.selection import select


@pytest.mark.parametrize("kind", ["distinct", "outliers", "central"])
def test_select_writes_table_sheet_and_json(command, indexed, tmp_path, kind):
    run, gallery = indexed
    table = tmp_path / "a table.csv"
    sheet = tmp_path / "sheet.png"
    done = command("select", run.folder, "-n", 3, "--kind", kind, "--csv", table, "--sheet", sheet, "--json")
    told = json.loads(done.stdout)
    expected = select(gallery.embedded, 3, kind)
    assert told == expected.as_json()
    assert run.select(3, kind).as_json() == told
    assert [each["path"] for each in told["selected"]] == expected.paths
    assert len(expected.paths) == (30 if kind == "central" else 3)
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["path"] for row in rows] == expected.paths
    assert [row["path"].split("/")[0] for row in rows] == [row["class"] for row in rows]
    assert sheet.stat().st_size > 1000


def test_select_prints_what_was_selected(command, indexed):
    run = indexed[0]
    shown = " ".join(command("select", run.folder, "-n", 201).stdout.split())
    assert "the first 200 of 200" not in shown
    assert "200 of 200 images, the most distinct: every image is within 0 of one of them" in shown
    shown = " ".join(command("select", run.folder, "-n", 2, "--kind", "central").stdout.split())
    assert "20 of 200 images, the nearest to the centers of 10 classes" in shown
    shown = " ".join(command("select", run.folder, "-n", 2, "--kind", "outliers").stdout.split())
    assert "2 of 200 images, the farthest from the others: distances are to the fifth nearest image" in shown


def test_ids_of_vectors_are_selected(command, tmp_path):
    table = tmp_path / "vectors.npz"
    points = np.eye(8, dtype=np.float32)[[0, 1, 2, 2, 3, 3, 3]] + 0.1
    np.savez(table, embeddings=points, ids=np.array([f"id {number}" for number in range(7)]))
    run = tmp_path / "run"
    assert command("fit", table, "--no-labels", "--out", run).returncode == 0
    assert command("index", run, table).returncode == 0
    done = command("select", run, "-n", 5, "--json")
    told = json.loads(done.stdout)["selected"]
    assert sorted(each["path"] for each in told[:4]) == ["id 0", "id 1", "id 2", "id 4"]
    assert told[4]["distance"] == 0
    shown = " ".join(command("select", run, "-n", 9).stdout.split())
    assert "7 of 7 vectors" in shown
    assert "the last 3 are copies, at a distance of 0" in shown
    done = command("select", run, "--sheet", tmp_path / "a.png")
    assert done.returncode == 2
    assert "has vectors, no image files" in done.stderr
