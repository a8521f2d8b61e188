"""Labels of a folder that come later: the table, and the head that is fitted to kept features."""

import csv

import pytest
from PIL import Image

from pml_ext import load_run
from pml_ext.errors import ConfigError, DataError
from pml_ext_fit import folder_runs
from pml_ext_fit.commands import fit
from pml_ext_fit.later_labels import labeled_table
from pml_ext_train.data import read_rows
from pml_ext_train.files import read_json
from pml_ext_train.records.run_files import tables_of_run

from ..train.training.made_up_photos import write_photos
from .test_unlabeled import Lines


@pytest.fixture
def flat(tmp_path, weights):
    """A flat folder of 32 photographs of four classes, a broken file, and one without a class; and the table."""
    write_photos(tmp_path / "classes", classes=4, each=8)
    place = tmp_path / "my photos"
    place.mkdir()
    rows = [("path", "class")]
    for file in sorted((tmp_path / "classes").rglob("*.png")):
        name = f"{file.parent.name}, {file.name}"
        file.rename(place / name)
        rows.append((name, file.parent.name))
    (place / "broken.png").write_bytes(b"no image")
    rows.append(("broken.png", "class-00"))
    Image.new("RGB", (48, 48), "red").save(place / "unknown.png")
    table = tmp_path / "classes.csv"
    with table.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return place, table


def test_a_head_is_fitted_to_kept_features(flat, tmp_path, monkeypatch, capsys):
    place, table = flat
    fit(place, out=tmp_path / "before", device="cpu")
    capsys.readouterr()

    def read(*_, **__):
        raise AssertionError("an image was read")

    with monkeypatch.context() as patched:
        patched.setattr("pml_ext_train.training.features.embed_batches", read)
        fit(place, labels=table, out=tmp_path / "after", device="cpu")
    shown = capsys.readouterr()
    assert f"{table}: classes of 32 of 33 images" in shown.err
    assert "whole images at 224 pixels: that took" in shown.err
    metrics = read_json(tmp_path / "after" / "metrics.json")
    assert metrics["after"]["recall_at_1"] > 0.6  # at random a third or less
    tables = tables_of_run(tmp_path / "after")
    assert tables["data"]["images"]["squash"]
    assert folder_runs.remembered(place) == tmp_path / "after"
    indexed = load_run(tmp_path / "after", "cpu").indexed_images()
    assert len(indexed.paths) == 33
    assert "unknown.png" in indexed.paths


def rows_of(file):
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def test_the_table_has_absolute_paths_of_classed_images(flat):
    place, table = flat
    with table.open("a", newline="") as file:
        file.write("unknown.png,\n")
    copied = labeled_table(place, table, None, [], "cpu", Lines()).file
    assert copied.parent == folder_runs.home_of(place)
    rows = rows_of(copied)
    assert len(rows) == 32
    assert list(rows[0].items()) == [("path", str(place / "class-00, 0.png")), ("label", "class-00")]


TABLES = {
    "file,class\na.png,a\n": r"found the columns file, class; wanted path, relative to .*my photos, and cl",
    "path,class\ngone.png,a\n": r"gone.png: no such file, though .*other.csv lists it \(1 of 1 are missing\)",
    "path,class\nbroken.png,a\n": "none of its 1 images can be read",
    "path,class\nunknown.png,\n": "found no class in its 1 rows; fill the column class",
}


def test_tables_of_something_else_are_refused(flat, tmp_path):
    place, table = flat
    other = tmp_path / "other.csv"
    with pytest.raises(DataError, match="other.csv: no such file; wanted a .csv or .parquet table"):
        labeled_table(place, other, None, [], "cpu", Lines())
    for written, text in TABLES.items():
        other.write_text(written)
        with pytest.raises(DataError, match=text):
            labeled_table(place, other, None, [], "cpu", Lines())
    with pytest.raises(ConfigError, match="the table belongs to a folder of images; .*classes.csv is not a folder"):
        labeled_table(table, table, None, [], "cpu", Lines())
    for option, text in (("no_labels", "--labels and --no-labels contradict"), ("fine_tune", "a head in closed form")):
        with pytest.raises(ConfigError, match=text):
            fit(place, labels=table, device="cpu", **{option: True})


def test_errors_are_about_the_table_that_was_given(flat, tmp_path):
    place, table = flat
    rows = table.read_text().splitlines()
    names = [row.rpartition(",")[0] for row in rows[1:4]]
    other = tmp_path / "my own.csv"
    lines = ["path,class,split", "unknown.png,,", f"{names[0]},one,train", "", f'{names[1]},"a\nb",train']
    wrong_split = "\n".join([*lines, f"{names[2]},two,trian", ""])
    one_class = f"path,class\n{names[0]},one\n{names[1]},one\n"
    for written, text in (
        (wrong_split, r"my own.csv, line 7: found split 'trian'"),
        (one_class, r"my own.csv: found 1 classes in 2 rows; wanted two or more"),
    ):
        other.write_text(written)
        with pytest.raises(DataError, match=text) as raised:
            fit(place, labels=other, device="cpu")
        assert "labels-" not in str(raised.value)


def test_patterns_leave_out_rows_of_the_table(flat, tmp_path, capsys):
    place, table = flat
    fit(place, labels=table, out=tmp_path / "run", exclude=["class-03*"], device="cpu")
    named = [row["path"] for _, row in read_rows(next(folder_runs.home_of(place).glob("labels-*.csv")), "")[1]]
    assert len(named) == 24
    assert not [path for path in named if "class-03" in path]
    assert len(load_run(tmp_path / "run", "cpu").indexed_images().paths) == 25
    with pytest.raises(DataError, match="no image is left"):
        fit(place, labels=table, exclude=["*"], device="cpu")


def test_named_clusters_of_the_page_are_labels(flat, tmp_path, capsys):
    pytest.importorskip("starlette", reason="the extra [browse] is not installed")
    from pml_ext_browse import open_collections
    from pml_ext_browse.page import Page

    place, _ = flat
    (place / "broken.png").unlink()
    fit(place, out=tmp_path / "before", device="cpu")
    page = Page(open_collections([tmp_path / "before"], place, "cpu", lambda _: None), tmp_path / "uploads")
    table = tmp_path / "classes.csv"
    table.write_text(page.named({"clusters": "3", "cluster0": " a  man's, best ", "cluster1": "Zürich"}))
    rows = rows_of(table)
    assert {row["class"] for row in rows} == {"a man's, best", "Zürich"}
    assert 4 <= len(rows) < 33
    capsys.readouterr()
    fit(place, labels=table, out=tmp_path / "after", device="cpu")
    assert f"{table}: classes of {len(rows)} of 33 images" in capsys.readouterr().err
    assert {*load_run(tmp_path / "after", "cpu").class_names} == {"a man's, best", "Zürich"}
    assert len(load_run(tmp_path / "after", "cpu").gallery().embedded.paths) == 33


def test_filled_tables_of_cluster_are_labels(flat, tmp_path, pml_ext_command):
    place, _ = flat
    table = tmp_path / "selected.csv"
    fit(place, out=tmp_path / "run", device="cpu")
    assert pml_ext_command("select", tmp_path / "run", "-n", 12, "--csv", table).returncode == 0
    assert pml_ext_command("cluster", tmp_path / "run", place, "-o", tmp_path / "clusters").returncode == 0
    for written in (table, tmp_path / "clusters" / "clusters.csv"):
        rows = rows_of(written)
        for number, row in enumerate(rows):
            row["class"] = "even" if number % 2 == 0 else "odd"
        with written.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
        copies = rows_of(labeled_table(place, written, None, [], "cpu", Lines()).file)
        assert [sorted(row) for row in copies] == [["label", "path"]] * len(rows)
