"""Images listed in a CSV table: the parts, and what is refused."""

import os
from pathlib import Path

import pytest

from pml_ext.errors import ConfigError, DataError
from pml_ext_train.data import table

from .made_up import jpeg


def table_of(place: Path, rows: list[str], columns="label,path,split,is_query,is_gallery,x_1,x_2,y_1,y_2") -> Path:
    for number in range(8):
        jpeg(place / "photos" / f"{number}.jpg", 20 * number)
    file = place / "mine.csv"
    file.write_text("\n".join([columns, *rows]) + "\n")
    return file


def rows_of(parts, *more):
    """Rows of eight images of four classes: label, path, part, and a cell of each further column."""
    return [",".join([f"{n // 2},photos/{n}.jpg", *cells]) for n, cells in enumerate(zip(parts, *more, strict=True))]


HALVES = ["train"] * 4 + ["validation"] * 4
TRAIN = ["10,photos/0.jpg,train,,,,,,", "10,photos/1.jpg,train,,,2,8,3,7", "9,photos/2.jpg,train,,,,,,"]
SHARED = ["10,photos/3.jpg,validation,True,True,,,,", "10,photos/4.jpg,validation,True,True,,,,"]


@pytest.mark.parametrize("separator", [",", ";", " ; "])  # as people type it
def test_a_table_has_parts_labels_and_boxes(tmp_path, separator):
    tested = [f"{label},photos/{n}.jpg,validation,True,True,,,," for n, label in ((3, 7), (4, 7), (5, 8))]
    file = table_of(tmp_path, TRAIN + tested)
    file.write_text(file.read_text().replace(",", separator))
    splits = table(path=str(file))
    assert splits.train.class_names == ["10", "7", "8", "9"]
    assert (splits.train.labels.tolist(), splits.test.labels.tolist()) == ([0, 0, 3], [1, 1, 2])
    assert tuple(splits.train[1][0].shape) == (3, 4, 6)  # rows 3 to 7 and columns 2 to 8
    assert tuple(splits.train[0][0].shape) == (3, 16, 20)
    (tmp_path / "elsewhere").mkdir()
    moved = file.rename(tmp_path / "elsewhere" / "mine.csv")
    assert table(tmp_path, path=str(moved)).test.paths[0] == tmp_path / "photos" / "3.jpg"


def test_a_table_may_have_queries_and_gallery(tmp_path):
    tested = [f"{label},photos/{n}.jpg,validation,{n == 3},{n != 3},,,," for n, label in ((3, 7), (4, 7), (5, 8))]
    splits = table(path=str(table_of(tmp_path, TRAIN + tested)))
    assert splits.test is None
    assert [path.name for path in splits.query.paths] == ["3.jpg"]
    assert [path.name for path in splits.gallery.paths] == ["4.jpg", "5.jpg"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("7,photos/3.jpg,often,,,,,,", "line 5: found split 'often': .*'train', 'validation' or 'test'"),
        ("7,photos/99.jpg,validation,True,True,,,,", "photos/99.jpg: no such file, but .*mine.csv lists it"),
        (SHARED[0], "1 classes of train are also in validation, 10 first.* data.split=image"),
        ("7,photos/0.jpg,validation,True,True,,,,", "photos/0.jpg is in train and in validation"),
        ("7,./photos/0.jpg,validation,True,True,,,,", "photos/0.jpg is in train and in validation"),
        (",photos/3.jpg,validation,True,True,,,,", "line 5: label is empty; fill the cell, or delete the row"),
        ("nan,photos/3.jpg,validation,True,True,,,,", "line 5: label is empty"),
        ("7,None,validation,True,True,,,,", "line 5: path is empty"),
        ("7,photos/3.jpg,test,True,,,,,\n7,photos/4.jpg,test,,,,,,", "1 of 2 .* neither .* photos/4.jpg first"),
        ("7,photos/3.jpg,validation,often,True,,,,", "line 5: found is_query 'often': .*boolean"),
        ("7,photos/3.jpg,validation,True,True,5,5,1,2", "the box is empty; x_1 must be below x_2"),
        ("7,photos/3.jpg,test,True,True,,,,\n7,photos/4.jpg,test,True,False,,,,", "1 of 2 tested images are both"),
        ("7,photos/3.jpg,validation,True,True,,,,", "1 images for test; it needs 2 or more"),
        ('"7"x,photos/3.jpg,validation,True,True,,,,', "cannot be read as a table .*line 5.*balanced"),
        ("7|8,photos/3.jpg,validation,True,True,,,,", r"photos/3.jpg has several labels in one cell, '7\|8'. Keep one"),
    ],
)
def test_a_wrong_row_is_named(tmp_path, row, message):
    with pytest.raises(DataError, match=message):
        table(path=str(table_of(tmp_path, [*TRAIN, row])))


def test_columns_that_are_not_used_are_noted(tmp_path):
    splits = table(path=str(table_of(tmp_path, rows_of(HALVES, "a" * 8, "1" * 8), "label,path,split,colour,x1")))
    assert "mine.csv: not used: colour, x1; the columns used are label, path, split," in splits.note
    assert splits.note.endswith("sequence, camera")
    plain = table(path=str(table_of(tmp_path, rows_of(HALVES), "label,path,split")))
    assert (plain.note, plain.test.groups) == ("", None)


def test_groups_come_from_sequences_or_cameras(tmp_path):
    rows = rows_of(HALVES, ["", "", "", "a", "a", "b", "", "b"])
    splits = table(path=str(table_of(tmp_path, rows, "label,path,split,sequence")))
    assert splits.train.groups.tolist() == ["", "", "", "a"]
    assert splits.test.groups.tolist() == ["a", "b", "", "b"]
    assert splits.test.subset([3, 2]).groups.tolist() == ["b", ""]
    assert splits.note == ""
    by_camera = table_of(tmp_path, rows_of(HALVES, "11112222"), "label,path,split,camera")
    assert table(path=str(by_camera)).test.groups.tolist() == ["2, camera 2"] * 2 + ["3, camera 2"] * 2


@pytest.mark.parametrize(
    ("columns", "group", "text"),
    [
        ("sequence", "", "the column sequence is empty in all rows; fill it, or delete it"),
        (
            "sequence",
            "a",
            "photos/4.jpg has no gallery, because all 4 entries belong to its own group, 'a'; add others",
        ),
        ("sequence,camera", "a,b", "found both columns sequence and camera, .* delete one"),
    ],
)
def test_useless_columns_of_groups_are_refused(tmp_path, columns, group, text):
    with pytest.raises(DataError, match=text):
        table(path=str(table_of(tmp_path, rows_of(HALVES, [group] * 8), f"label,path,split,{columns}")))


@pytest.mark.parametrize("name", [os.devnull, "", "pipe.csv"])
def test_pipes_and_devices_are_not_tables(tmp_path, name):
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(DataError, match=f"{name}: not a regular file; type table:FILE.csv"):
        table(path=str(tmp_path / name))


def test_classes_may_be_shared_between_parts(tmp_path):
    file = str(table_of(tmp_path, TRAIN + SHARED))
    for setting in ({"shared_classes": True}, {"split": "image"}):
        splits = table(path=file, **setting)
        assert (splits.train.labels.tolist(), splits.test.labels.tolist()) == ([0, 0, 1], [0, 0])
    with pytest.raises(ConfigError, match=r"mine.csv: seed: found 1, but the table has its own split"):
        table(path=file, seed=1)


def test_tested_rows_leave_validation_to_choose_epochs(tmp_path):
    parts = ["train", "train", "validation", "validation", "test", "test", "test", "train"]
    splits = table(path=str(table_of(tmp_path, rows_of(parts), "label,path,split")), split="image")
    for part, numbers in ((splits.train, "017"), (splits.validation, "23"), (splits.test, "456")):
        assert [path.stem for path in part.paths] == [*numbers]


def test_a_table_without_split_is_divided(tmp_path):
    file = str(table_of(tmp_path, [row.removesuffix(",") for row in rows_of([""] * 8)], "label,path"))
    splits = table(path=file)
    assert not {*splits.train.labels.tolist()} & {*splits.test.labels.tolist()}
    assert (len(splits.train), len(splits.test)) == (4, 4)
    splits = table(path=file, split="image", seed=3)
    assert splits.train.labels.tolist() == splits.test.labels.tolist() == [0, 1, 2, 3]
    assert len({*splits.train.paths, *splits.test.paths}) == 8
    assert table(path=file, split="image", seed=3).train.paths == splits.train.paths
    for fraction in (0, 1):
        with pytest.raises(ConfigError, match=f"train_fraction must be above 0 and below 1, not {fraction}"):
            table(path=file, train_fraction=fraction)


@pytest.mark.parametrize(
    ("columns", "row", "text"),
    [
        ("label,path", "1,photos/1.jpg", "found 1 classes in 1 rows; wanted two or more"),
        ("label,path,is_query", "1,photos/1.jpg,True", "found is_query without the column split; add it to say which"),
    ],
)
def test_a_table_needs_classes_and_a_split(tmp_path, columns, row, text):
    with pytest.raises(DataError, match=text):
        table(path=str(table_of(tmp_path, [row], columns)))


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({}, r"no column path among Image, Id, label; .* --set data.columns.path=NAME"),
        ({"label": "ID"}, r"data.columns.label: no column 'ID'; nearest: Id"),
        ({"lable": "Id"}, r"data.columns: no column 'lable'; nearest: label"),
    ],
)
def test_columns_with_other_names_are_mapped(tmp_path, columns, text):
    rows = [f"photos/{number}.jpg,whale{number // 2},{number}" for number in range(8)]
    file = str(table_of(tmp_path, rows, "Image,Id,label"))
    splits = table(path=file, columns={"label": "Id", "path": "Image"})
    assert splits.train.class_names == [f"whale{number}" for number in range(4)]
    with pytest.raises((ConfigError, DataError), match=text):
        table(path=file, columns=columns)


def test_several_boxes_of_a_file_are_images(tmp_path):
    rows = [f"{number // 2},photos/{number // 4}.jpg,{number},0,{number + 4},9" for number in range(8)]
    columns = "label,path,x_1,y_1,x_2,y_2"
    splits = table(path=str(table_of(tmp_path, rows, columns)), split="image")
    assert (len(splits.train) + len(splits.test), len({*splits.train.paths})) == (8, 2)
    assert tuple(splits.train[0][0].shape) == (3, 9, 4)
    with pytest.raises(DataError, match=r"photos/0.jpg is in train and in train; delete one of its lines"):
        table(path=str(table_of(tmp_path, [*rows, rows[0]], columns)))


def test_a_data_frame_is_a_table(tmp_path):
    pandas = pytest.importorskip("pandas")
    table_of(tmp_path, [])
    frame = pandas.DataFrame({"label": [1, 1, 2, 2], "path": [f"photos/{number}.jpg" for number in range(4)]})
    assert table(tmp_path, frame, split="image").train.class_names == ["1", "2"]
    frame.loc[2, "label"] = None
    with pytest.raises(DataError, match="DataFrame, row 2: label is empty"):
        table(tmp_path, frame)


def test_spellings_in_unicode_do_not_matter(tmp_path):
    labels = ["Ame\u0301lie", "Am\u00e9lie", "b", "b"]
    rows = [f"{label},photos/Zo\u00eb {n}.jpg,train" for n, label in enumerate(labels)]
    rows += ["c,photos/4.jpg,test", "c,photos/5.jpg,test"]
    file = table_of(tmp_path, rows, "label,path,split")
    for number in range(4):
        (tmp_path / "photos" / f"{number}.jpg").rename(tmp_path / "photos" / f"Zoe\u0308 {number}.jpg")
    splits = table(path=str(file))
    assert splits.train.labels.tolist() == [0, 0, 1, 1]
    assert all(path.is_file() for path in splits.train.paths)
