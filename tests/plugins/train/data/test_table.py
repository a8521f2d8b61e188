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


TRAIN = ["10,photos/0.jpg,train,,,,,,", "10,photos/1.jpg,train,,,2,8,3,7", "9,photos/2.jpg,train,,,,,,"]


def test_a_table_of_ones_own(tmp_path):
    tested = [f"{label},photos/{n}.jpg,validation,True,True,,,," for n, label in ((3, 7), (4, 7), (5, 8))]
    splits = table(path=str(file := table_of(tmp_path, TRAIN + tested)))
    file.write_text(file.read_text().replace(",", ";"))
    assert table(path=str(file)).test.paths == splits.test.paths
    assert splits.train.class_names == ["10", "7", "8", "9"]
    assert splits.train.labels.tolist() == [0, 0, 3]
    assert splits.test.labels.tolist() == [1, 1, 2]
    assert tuple(splits.train[1][0].shape) == (3, 4, 6)  # rows 3 to 7 and columns 2 to 8
    assert tuple(splits.train[0][0].shape) == (3, 16, 20)
    file.write_text(file.read_text().replace(";", " ; "))  # as people type it
    assert table(path=str(file)).train.class_names == splits.train.class_names
    short = [",".join(row.split(",")[:3]) for row in TRAIN + tested]
    (tmp_path / "elsewhere").mkdir()
    file = table_of(tmp_path / "elsewhere", short, "label,path,split")
    assert table(tmp_path, path=str(file)).test.paths[0] == tmp_path / "photos" / "3.jpg"


def test_a_table_with_queries_and_a_gallery(tmp_path):
    tested = [
        "7,photos/3.jpg,validation,True,False,,,,",
        "7,photos/4.jpg,validation,False,True,,,,",
        "8,photos/5.jpg,validation,False,True,,,,",
    ]
    splits = table(path=str(table_of(tmp_path, TRAIN + tested)))
    assert splits.test is None
    assert [path.name for path in splits.query.paths] == ["3.jpg"]
    assert [path.name for path in splits.gallery.paths] == ["4.jpg", "5.jpg"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("7,photos/3.jpg,often,,,,,,", "line 5: found split 'often': .*'train', 'validation' or 'test'"),
        ("7,photos/99.jpg,validation,True,True,,,,", "photos/99.jpg: no such file, though .*mine.csv lists it"),
        (
            "10,photos/3.jpg,validation,True,True,,,,",
            "1 of the classes of train are in validation too, 10 first.* data.split=image",
        ),
        ("7,photos/0.jpg,validation,True,True,,,,", "photos/0.jpg is in train and in validation"),
        (",photos/3.jpg,validation,True,True,,,,", "line 5: label is empty; fill the cell, or delete the row"),
        ("nan,photos/3.jpg,validation,True,True,,,,", "line 5: label is empty"),
        ("7,None,validation,True,True,,,,", "line 5: path is empty"),
        ("7,./photos/0.jpg,validation,True,True,,,,", "photos/0.jpg is in train and in validation"),
        (
            "7,photos/3.jpg,validation,True,,,,,\n7,photos/4.jpg,validation,,,,,,",
            "1 of 2 .* neither .* photos/4.jpg first",
        ),
        ("7,photos/3.jpg,validation,often,True,,,,", "line 5: found is_query 'often': .*boolean"),
        ("7,photos/3.jpg,validation,True,True,5,5,1,2", "has no inside; wanted x_1 below x_2"),
        (
            "7,photos/3.jpg,validation,True,True,,,,\n7,photos/4.jpg,validation,True,False,,,,",
            "1 of 2 tested images are",
        ),
        ("7,photos/3.jpg,validation,True,True,,,,", "1 images for test; wanted 2 or more"),
        ('"7"x,photos/3.jpg,validation,True,True,,,,', "cannot be read as a table .*line 5.*balanced"),
        (
            "7|8,photos/3.jpg,validation,True,True,,,,",
            r"photos/3.jpg has several labels in one cell, '7\\|8'; .*keep one",
        ),
    ],
)
def test_tables_that_do_not_serve(tmp_path, row, message):
    with pytest.raises(DataError, match=message):
        table(path=str(table_of(tmp_path, [*TRAIN, row])))


def test_a_table_names_columns_that_it_does_not_use(tmp_path):
    rows = [f"{n // 2},photos/{n}.jpg,{'train' if n < 4 else 'validation'},a,1" for n in range(8)]
    splits = table(path=str(table_of(tmp_path, rows, "label,path,split,colour,x1")))
    assert "mine.csv: not used: colour, x1; the columns that are used are label, path, split," in splits.note
    assert splits.note.endswith("sequence, camera")
    assert table(path=str(table_of(tmp_path, [row[:-4] for row in rows], "label,path,split"))).note == ""


def test_groups_of_a_table(tmp_path):
    def rows_of(groups):
        parts = ["train"] * 4 + ["validation"] * 4
        return [f"{n // 2},photos/{n}.jpg,{part},{groups[n]}" for n, part in enumerate(parts)]

    file = table_of(tmp_path, rows_of(["", "", "", "a", "a", "b", "", "b"]), "label,path,split,sequence")
    splits = table(path=str(file))
    assert splits.train.groups.tolist() == ["", "", "", "a"]
    assert splits.test.groups.tolist() == ["a", "b", "", "b"]
    assert splits.test.subset([3, 2]).groups.tolist() == ["b", ""]
    assert splits.note == ""

    by_camera = table_of(tmp_path, rows_of("11112222"), "label,path,split,camera")
    assert table(path=str(by_camera)).test.groups.tolist() == ["2, camera 2"] * 2 + ["3, camera 2"] * 2
    plain = table_of(tmp_path, [row[:-1].rstrip(",") for row in rows_of("11112222")], "label,path,split")
    assert table(path=str(plain)).test.groups is None


@pytest.mark.parametrize(
    ("columns", "groups", "text"),
    [
        ("sequence", [""] * 8, "the column sequence is empty in all rows; fill it, or delete it"),
        ("sequence", ["a"] * 8, "photos/4.jpg has no gallery: all 4 of it are of its own group, 'a'; wanted"),
        ("sequence,camera", ["a,b"] * 8, "found the columns sequence and camera, .* delete one"),
    ],
)
def test_groups_that_do_not_serve(tmp_path, columns, groups, text):
    rows = [f"{n // 2},photos/{n}.jpg,{'train' if n < 4 else 'validation'},{groups[n]}" for n in range(8)]
    with pytest.raises(DataError, match=text):
        table(path=str(table_of(tmp_path, rows, f"label,path,split,{columns}")))


def test_a_table_that_is_a_pipe_or_a_device(tmp_path):
    os.mkfifo(tmp_path / "mine.csv")
    for file in (Path(os.devnull), tmp_path, tmp_path / "mine.csv"):
        with pytest.raises(DataError, match=f"{file}: not a regular file; wanted table:FILE.csv"):
            table(path=str(file))


def test_tables_that_are_none(tmp_path):
    with pytest.raises(DataError, match="found 1 classes in 1 rows; wanted two or more"):
        table(path=str(table_of(tmp_path, ["1,photos/1.jpg"], "label,path")))
    tested = ["10,photos/3.jpg,validation,True,True,,,,", "10,photos/4.jpg,validation,True,True,,,,"]
    assert len(table(path=str(table_of(tmp_path, TRAIN + tested)), shared_classes=True).test) == 2


def test_a_closed_table_is_split_by_image(tmp_path):
    tested = ["10,photos/3.jpg,validation,True,True,,,,", "10,photos/4.jpg,validation,True,True,,,,"]
    splits = table(path=str(table_of(tmp_path, TRAIN + tested)), split="image")
    assert splits.test.labels.tolist() == [0, 0]
    assert splits.train.labels.tolist() == [0, 0, 1]
    with pytest.raises(ConfigError, match=r"mine.csv: seed: found 1, and the table has a split of its own"):
        table(path=str(tmp_path / "mine.csv"), seed=1)


def test_rows_of_test_are_tested_and_validation_chooses_the_epoch(tmp_path):
    parts = ["train", "train", "validation", "validation", "test", "test", "test", "train"]
    rows = [f"{number // 2},photos/{number}.jpg,{part}" for number, part in enumerate(parts)]
    splits = table(path=str(table_of(tmp_path, rows, "label,path,split")), split="image")
    for part, numbers in ((splits.train, "017"), (splits.validation, "23"), (splits.test, "456")):
        assert [path.stem for path in part.paths] == [*numbers]


def test_a_table_without_a_split_is_split_as_a_folder_is(tmp_path):
    file = table_of(tmp_path, [f"{number // 2},photos/{number}.jpg" for number in range(8)], "label,path")
    splits = table(path=str(file))
    assert not {*splits.train.labels.tolist()} & {*splits.test.labels.tolist()}
    assert (len(splits.train), len(splits.test)) == (4, 4)
    splits = table(path=str(file), split="image", seed=3)
    assert splits.train.labels.tolist() == splits.test.labels.tolist() == [0, 1, 2, 3]
    assert len({*splits.train.paths, *splits.test.paths}) == 8
    again = table(path=str(file), split="image", seed=3)
    assert again.train.paths == splits.train.paths
    with pytest.raises(ConfigError, match="train_fraction must be above 0 and below 1, not 2"):
        table(path=str(file), train_fraction=2)
    file.write_text("label,path,is_query\n1,photos/1.jpg,True\n")
    with pytest.raises(DataError, match="found is_query without a column split, which says what is tested; add it"):
        table(path=str(file))


def test_columns_of_other_names(tmp_path):
    rows = [f"photos/{number}.jpg,whale{number // 2},{number}" for number in range(8)]
    file = table_of(tmp_path, rows, "Image,Id,label")
    with pytest.raises(DataError, match=r"no column path among Image, Id, label; .* --set data.columns.path=NAME"):
        table(path=str(file))
    splits = table(path=str(file), columns={"label": "Id", "path": "Image"})
    assert splits.train.class_names == [f"whale{number}" for number in range(4)]
    with pytest.raises(DataError, match=r"data.columns.label: no column 'ID'; nearest: Id"):
        table(path=str(file), columns={"label": "ID"})
    with pytest.raises(ConfigError, match=r"data.columns: no column 'lable'; nearest: label"):
        table(path=str(file), columns={"lable": "Id"})


def test_several_boxes_of_a_file_are_images_of_their_own(tmp_path):
    rows = [f"{number // 2},photos/{number // 4}.jpg,{number},0,{number + 4},9" for number in range(8)]
    columns = "label,path,x_1,y_1,x_2,y_2"
    splits = table(path=str(table_of(tmp_path, rows, columns)), split="image")
    assert len(splits.train) + len(splits.test) == 8
    assert len({*splits.train.paths}) == 2
    assert tuple(splits.train[0][0].shape) == (3, 9, 4)
    with pytest.raises(DataError, match=r"photos/0.jpg is in train and in train; delete one of its lines"):
        table(path=str(table_of(tmp_path, [*rows, rows[0]], columns)))


def test_a_frame_is_a_table(tmp_path):
    pandas = pytest.importorskip("pandas")
    table_of(tmp_path, [])
    frame = pandas.DataFrame({"label": [1, 1, 2, 2], "path": [f"photos/{number}.jpg" for number in range(4)]})
    splits = table(tmp_path, frame, split="image")
    assert splits.train.class_names == ["1", "2"]
    frame.loc[2, "label"] = None
    with pytest.raises(DataError, match="DataFrame, row 2: label is empty"):
        table(tmp_path, frame)


def test_paths_and_labels_are_found_however_they_are_spelled(tmp_path):
    rows = [
        f"{label},photos/Zo\u00eb {n}.jpg,train" for n, label in enumerate(["Ame\u0301lie", "Am\u00e9lie", "b", "b"])
    ]
    rows += ["c,photos/4.jpg,test", "c,photos/5.jpg,test"]
    file = table_of(tmp_path, rows, "label,path,split")
    for number in range(4):
        (tmp_path / "photos" / f"{number}.jpg").rename(tmp_path / "photos" / f"Zoe\u0308 {number}.jpg")
    splits = table(path=str(file))
    assert splits.train.labels.tolist() == [0, 0, 1, 1]
    assert all(path.is_file() for path in splits.train.paths)
