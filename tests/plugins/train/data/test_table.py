"""Tables: their rows, images with labels, and lists of pairs and triplets."""

import csv
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pml_ext.errors import ConfigError, DataError
from pml_ext_train.data import pairs, table, triplets
from pml_ext_train.data.rows import is_empty, read_rows, rows_of_frame, table_text
from pml_ext_train.files import write_text

from .made_up import jpeg

BOXED = "label,path,split,is_query,is_gallery,x_1,x_2,y_1,y_2"


def table_of(place: Path, rows: list[str], columns=BOXED) -> Path:
    for number in range(8):
        jpeg(place / "photos" / f"{number}.jpg", 20 * number)
    file = place / "mine.csv"
    file.write_text("\n".join([columns, *rows]) + "\n")
    return file


def read_table(place: Path, rows: list[str], columns=BOXED, **settings):
    return table(path=str(table_of(place, rows, columns)), **settings)


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
    splits = read_table(tmp_path, TRAIN + tested)
    assert splits.test is None
    assert [path.name for path in splits.query.paths] == ["3.jpg"]
    assert [path.name for path in splits.gallery.paths] == ["4.jpg", "5.jpg"]


@pytest.mark.parametrize(
    ("rows", "columns", "message"),
    [
        (
            [*TRAIN, "7,photos/3.jpg,often,,,,,,"],
            BOXED,
            "line 5: found split 'often': .*'train', 'validation' or 'test'",
        ),
        (
            [*TRAIN, "7,photos/99.jpg,validation,True,True,,,,"],
            BOXED,
            "photos/99.jpg: no such file, but .*mine.csv lists it",
        ),
        ([*TRAIN, SHARED[0]], BOXED, "1 classes of train are also in validation, 10 first.* data.split=image"),
        ([*TRAIN, "7,photos/0.jpg,validation,True,True,,,,"], BOXED, "photos/0.jpg is in train and in validation"),
        ([*TRAIN, "7,./photos/0.jpg,validation,True,True,,,,"], BOXED, "photos/0.jpg is in train and in validation"),
        (
            [*TRAIN, ",photos/3.jpg,validation,True,True,,,,"],
            BOXED,
            "line 5: label is empty; fill the cell, or delete the row",
        ),
        ([*TRAIN, "nan,photos/3.jpg,validation,True,True,,,,"], BOXED, "line 5: label is empty"),
        ([*TRAIN, "7,None,validation,True,True,,,,"], BOXED, "line 5: path is empty"),
        (
            [*TRAIN, "7,photos/3.jpg,test,True,,,,,\n7,photos/4.jpg,test,,,,,,"],
            BOXED,
            "1 of 2 .* neither .* photos/4.jpg first",
        ),
        ([*TRAIN, "7,photos/3.jpg,validation,often,True,,,,"], BOXED, "line 5: found is_query 'often': .*boolean"),
        ([*TRAIN, "7,photos/3.jpg,validation,True,True,5,5,1,2"], BOXED, "the box is empty; x_1 must be below x_2"),
        (
            [*TRAIN, "7,photos/3.jpg,test,True,True,,,,\n7,photos/4.jpg,test,True,False,,,,"],
            BOXED,
            "1 of 2 tested images are both",
        ),
        ([*TRAIN, "7,photos/3.jpg,validation,True,True,,,,"], BOXED, "1 images for test; it needs 2 or more"),
        ([*TRAIN, '"7"x,photos/3.jpg,validation,True,True,,,,'], BOXED, "cannot be read as a table .*line 5.*balanced"),
        (
            [*TRAIN, "7|8,photos/3.jpg,validation,True,True,,,,"],
            BOXED,
            r"photos/3.jpg has several labels in one cell, '7\|8'. Keep one",
        ),
        (
            rows_of(HALVES, [""] * 8),
            "label,path,split,sequence",
            "the column sequence is empty in all rows; fill it, or delete it",
        ),
        (
            rows_of(HALVES, ["a"] * 8),
            "label,path,split,sequence",
            "photos/4.jpg has no gallery, because all 4 entries belong to its own group, 'a'; add others",
        ),
        (
            rows_of(HALVES, ["a,b"] * 8),
            "label,path,split,sequence,camera",
            "found both columns sequence and camera, .* delete one",
        ),
        (["1,photos/1.jpg"], "label,path", "found 1 classes in 1 rows; wanted two or more"),
        (
            ["1,photos/1.jpg,True"],
            "label,path,is_query",
            "found is_query without the column split; add it to say which",
        ),
    ],
)
def test_a_table_with_wrong_content_is_refused(tmp_path, rows, columns, message):
    with pytest.raises(DataError, match=message):
        read_table(tmp_path, rows, columns)


def test_columns_that_are_not_used_are_noted(tmp_path):
    splits = read_table(tmp_path, rows_of(HALVES, "a" * 8, "1" * 8), "label,path,split,colour,x1")
    assert "mine.csv: not used: colour, x1; the columns used are label, path, split," in splits.note
    assert splits.note.endswith("sequence, camera")
    plain = read_table(tmp_path, rows_of(HALVES), "label,path,split")
    assert (plain.note, plain.test.groups) == ("", None)


def test_groups_come_from_sequences_or_cameras(tmp_path):
    splits = read_table(tmp_path, rows_of(HALVES, ["", "", "", "a", "a", "b", "", "b"]), "label,path,split,sequence")
    assert splits.train.groups.tolist() == ["", "", "", "a"]
    assert splits.test.groups.tolist() == ["a", "b", "", "b"]
    assert splits.test.subset([3, 2]).groups.tolist() == ["b", ""]
    assert splits.note == ""
    groups = read_table(tmp_path, rows_of(HALVES, "11112222"), "label,path,split,camera").test.groups
    assert groups.tolist() == ["2, camera 2"] * 2 + ["3, camera 2"] * 2


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
    splits = read_table(tmp_path, rows_of(parts), "label,path,split", split="image")
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
    assert table(path=file, columns={"label": "Id", "path": "Image"}).train.class_names == [
        f"whale{number}" for number in range(4)
    ]
    with pytest.raises((ConfigError, DataError), match=text):
        table(path=file, columns=columns)


def test_several_boxes_of_a_file_are_images(tmp_path):
    rows = [f"{number // 2},photos/{number // 4}.jpg,{number},0,{number + 4},9" for number in range(8)]
    columns = "label,path,x_1,y_1,x_2,y_2"
    splits = read_table(tmp_path, rows, columns, split="image")
    assert (len(splits.train) + len(splits.test), len({*splits.train.paths})) == (8, 2)
    assert tuple(splits.train[0][0].shape) == (3, 9, 4)
    with pytest.raises(DataError, match=r"photos/0.jpg is in train and in train; delete one of its lines"):
        read_table(tmp_path, [*rows, rows[0]], columns)


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
    file = table_of(tmp_path, [*rows, "c,photos/4.jpg,test", "c,photos/5.jpg,test"], "label,path,split")
    for number in range(4):
        (tmp_path / "photos" / f"{number}.jpg").rename(tmp_path / "photos" / f"Zoe\u0308 {number}.jpg")
    splits = table(path=str(file))
    assert splits.train.labels.tolist() == [0, 0, 1, 1]
    assert all(path.is_file() for path in splits.train.paths)


# Rows


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_separators_of_spreadsheets_are_recognized(tmp_path, separator):
    file = tmp_path / "mine.csv"
    lines = [["a", "b"], ["1", '"x\ny"'], ["2", "z"]]
    file.write_text("\n".join(separator.join(line) for line in lines), "utf-8-sig")
    assert read_rows(file, "table:FILE.csv") == (
        ["a", "b"],
        [("line 3", {"a": "1", "b": "x\ny"}), ("line 4", {"a": "2", "b": "z"})],
    )


def test_own_tables_are_read_back_without_formulas(tmp_path):
    names = ["a\rb", "a\nb", 'a"b', "caf\udce9", "=1+1", "+a", "-a", "@a", "'=a", "''@a", "'a", "\t=1", "plain"]
    file = tmp_path / "mine.csv"
    write_text(file, table_text(["path", "n"], [(name, -1) for name in names]))
    assert [row for _, row in read_rows(file, "table:FILE.csv")[1]] == [{"path": name, "n": "-1"} for name in names]
    with file.open(newline="", encoding="utf-8", errors="surrogateescape") as opened:
        cells = [row[0] for row in csv.reader(opened)]
    assert not [cell for cell in cells if cell[0] in "=+-@\t\r"]


@pytest.mark.parametrize(
    ("text", "columns", "rows"),
    [
        ("", [], []),
        ("a, b \n1,2,,\n", ["a", "b"], [("line 2", {"a": "1", "b": "2"})]),
        (
            "a,b\n1,2\n,\n , ,\n3,\n,,\n\n",
            ["a", "b"],
            [("line 2", {"a": "1", "b": "2"}), ("line 5", {"a": "3", "b": ""})],
        ),
    ],
)
def test_empty_rows_and_spaces_are_ignored(tmp_path, text, columns, rows):
    (tmp_path / "mine.csv").write_text(text)
    assert read_rows(tmp_path / "mine.csv", "pairs:FILE.csv") == (columns, rows)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "mine.csv",
            b"path,class\ncaf\xe9.png,a\nb.png,caf\xe9\n",
            r"as a table \(bytes that are not UTF-8, line 3\); table:FILE",
        ),
        ("mine.csv", b"a,b,a\n1,2,3\n", "mine.csv: 2 columns have the name a; rename or delete one"),
        ("mine.csv", b"a,b\n1,2\n1,x,y\n", "line 3: 'y' is beyond the 2 columns; put cells that contain ',' in quotes"),
        ("bad.parquet", b"no table", "bad.parquet: cannot be read as a .parquet file .* write it again"),
    ],
)
def test_files_with_wrong_content_are_refused(tmp_path, name, content, message):
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_rows(tmp_path / name, "table:FILE.csv")


CELLS = {"label": [3.0, None], "path": ["a.jpg", "b.jpg"], "x_1": [1.5, None]}


def parquet_rows(place):
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table(CELLS), place / "mine.parquet")
    return read_rows(place / "mine.parquet", "table:FILE.csv")


def frame_rows(place):
    return rows_of_frame(pytest.importorskip("pandas").DataFrame(CELLS))


@pytest.mark.parametrize("read", [parquet_rows, frame_rows])
def test_other_tables_have_cells_like_csv(tmp_path, read):
    columns, (first, (place, second)) = read(tmp_path)
    assert columns == ["label", "path", "x_1"]
    assert first == ("row 0", {"label": "3", "path": "a.jpg", "x_1": "1.5"})
    assert (place, second["path"], is_empty(second["label"]), is_empty(second["x_1"])) == ("row 1", "b.jpg", True, True)


# Pairs and triplets


HEAD = "image1,image2,same,split"
PAIRS = ["a,b,1,train", "a,c,0,train", "d,e,true,test", "e,f,False,test"]
TRIPLETS = ["a,b,c,train", "b,a,d,train", "e,f,g,test"]
OF_TRIPLETS = "anchor,positive,negative,split"


def vectors_of(place, **columns):
    np.savez(
        place / "mine.npz",
        embeddings=np.arange(24, dtype=np.float32).reshape(8, 3),
        ids=np.array(list("hgfedcba")),
        **columns,
    )
    return str(place / "mine.npz")


def list_of(place, rows, head=HEAD):
    file = place / "mine.csv"
    file.write_text("\n".join([head, *rows]))
    return str(file)


def of_vectors(place, rows, head=HEAD, **columns):
    load = triplets if head == OF_TRIPLETS else pairs
    return load(path=list_of(place, rows, head), vectors=vectors_of(place, **columns))


def by_ids(part):
    return [[part.ids[item] for item in row] for row in part.tuples.rows.tolist()]


def test_pairs_refer_to_vectors_by_id(tmp_path):
    splits = of_vectors(tmp_path, PAIRS)
    known = dict(zip("hgfedcba", np.arange(24).reshape(8, 3).tolist(), strict=True))
    for part, expected in ((splits.train, [["a", "b"], ["a", "c"]]), (splits.test, [["d", "e"], ["e", "f"]])):
        assert by_ids(part) == expected
        assert part.tuples.same.tolist() == [True, False]
        assert part.vectors.tolist() == [known[id] for id in part.ids]
    assert (splits.vector_size, splits.validation, splits.note) == (3, None, "")


def test_triplets_of_vectors_lie_below_a_folder(tmp_path):
    vectors_of(tmp_path)
    splits = triplets(
        tmp_path, path=list_of(tmp_path, [*TRIPLETS, "a,h,e,validation"], OF_TRIPLETS), vectors="mine.npz"
    )
    assert by_ids(splits.train) == [["a", "b", "c"], ["b", "a", "d"]]
    assert by_ids(splits.validation) == [["a", "h", "e"]]
    assert splits.test.tuples.same is None


@pytest.fixture
def images(tmp_path):
    (tmp_path / "photos").mkdir()
    for number in range(6):
        Image.new("L", (20, 16), 40 * number).save(tmp_path / "photos" / f"{number}.png")
    return tmp_path


LISTED = [
    f"photos/{a}.png,photos/{b}.png,{same},{split}"
    for a, b, same, split in ((0, 1, 1, "train"), (1, 2, 0, "train"), (3, 4, 1, "test"), (5, 4, 0, "test"))
]


@pytest.mark.parametrize("elsewhere", [False, True])
def test_pairs_of_images_are_found_by_path(images, elsewhere):
    place = images / "lists" if elsewhere else images
    place.mkdir(exist_ok=True)
    splits = pairs(images if elsewhere else None, path=list_of(place, LISTED), channels=1, image_size=32)
    assert [path.name for path in splits.test.paths] == ["3.png", "4.png", "5.png"]
    assert splits.test.tuples.rows.tolist() == [[0, 1], [2, 1]]
    assert splits.image_size == 32
    image, label = splits.train[2]
    assert (tuple(image.shape), label, int(image[0, 0, 0])) == ((1, 16, 20), 0, 80)


def test_a_subset_keeps_only_complete_pairs(images):
    train = pairs(path=list_of(images, LISTED)).train
    kept = train.subset([1, 2])
    assert [path.name for path in kept.paths] == ["1.png", "2.png"]
    assert (kept.tuples.rows.tolist(), kept.tuples.same.tolist()) == ([[0, 1]], [False])
    sample = train.sample_of_tuples(2, seed=0)
    assert (len(sample), sample.tuples.same.tolist()) == (3, [True, False])  # a pair of each kind


@pytest.mark.parametrize(
    ("rows", "head", "text"),
    [
        ([*PAIRS, "a,,1,train"], HEAD, "mine.csv, line 6: image2 is empty; fill the cell, or delete the row"),
        ([*PAIRS, "a,NaN,1,train"], HEAD, "mine.csv, line 6: image2 is empty"),
        ([*PAIRS, "a,b"], HEAD, "mine.csv, line 6: same is empty"),
        ([*PAIRS, "a,a,1,train"], HEAD, "mine.csv, line 6: a is both image1 and image2; pairs need different images"),
        (
            [*PAIRS, "b,a,0,train"],
            HEAD,
            "line 6: b and a are not the same here, but the same in line 2; delete one of the lines",
        ),
        ([*PAIRS, "a,b,0,test"], HEAD, "line 6: a and b are not the same here, but the same in line 2"),
        ([*PAIRS, "a,d,maybe,train"], HEAD, r"mine.csv, line 6: found same 'maybe'; type 1 or 0 \(or true or false\)"),
        ([*PAIRS, "a,d,1,tset"], HEAD, "mine.csv, line 6: no split 'tset'; nearest: test"),
        (
            [*PAIRS, "a,z,1,train", "y,b,1,train"],
            HEAD,
            "2 ids of 8 are not in .*mine.npz, 'z' first; its ids are h, g, f, ...",
        ),
        ([*PAIRS, "a,h,1,validation"], HEAD, "all 1 pairs of validation are the same; add others"),
        ([], "", "no column image1 and no image2 and no same and no split among none; the first line needs image1"),
        (["a,b,train"], "image1,image2,split", "no column same among image1, image2, split"),
        ([], HEAD, "no pairs to train with, found no row; add rows of train"),
        (PAIRS[2:], HEAD, "no pairs to train with, found test; add rows of train"),
        (PAIRS[:2], HEAD, "no pairs to test with, found train; add rows of test"),
        (["a,b,1,train", *PAIRS[2:]], HEAD, "all 1 pairs of train are the same; add others"),
        ([*PAIRS[:2], "e,f,0,test"], HEAD, "all 1 pairs of test are not the same; add others"),
        (['"a"x,b,1,train'], HEAD, "cannot be read as pairs .*; pairs:FILE.csv must be UTF-8 with balanced quotes"),
        ([*TRIPLETS, "a,b,a,train"], OF_TRIPLETS, "line 5: a is both anchor and negative; triplets need different"),
        ([*TRIPLETS, "a,b,,train"], OF_TRIPLETS, "line 5: negative is empty"),
        ([*TRIPLETS, "a,b,c,valid"], OF_TRIPLETS, "line 5: no split 'valid'; nearest: validation"),
    ],
)
def test_a_list_with_wrong_content_is_refused(tmp_path, rows, head, text):
    with pytest.raises(DataError, match=text) as caught:
        of_vectors(tmp_path, rows, head)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ("photos/0.png,photos/99.png,1,train", r"99.png: no such file, but .*mine.csv lists it \(1 are missing\)"),
        ("photos/0.png,./photos/5.png,1,train", r"photos/5.png and ./photos/5.png are the same file"),
        ("photos/0.png,{}/photos/5.png,1,train", r"photos/5.png and /.*/photos/5.png are the same file"),
    ],
)
def test_a_missing_or_twice_named_image_is_refused(images, monkeypatch, row, text):
    monkeypatch.chdir(images)
    list_of(images, [*LISTED, row.format(images)])
    with pytest.raises(DataError, match=text):
        pairs(path="mine.csv")


def test_unused_columns_and_doubtful_rows_are_noted(tmp_path):
    splits = of_vectors(
        tmp_path, [f"{row},x" for row in PAIRS], f"{HEAD},colour", split=np.array(["train", "test"] * 4)
    )
    assert "mine.csv: not used: colour; the columns used are image1, image2, same, split" in splits.note
    assert "mine.npz: not used: split; " in splits.note
    splits = of_vectors(tmp_path, [*PAIRS, "a,e,0,test", "b,e,0,test"])
    assert "mine.csv: 2 of 5 test images are also trained on, a first" in splits.note
    assert (
        "1 triplet listed in both orders, a, b, c first"
        in of_vectors(tmp_path, [*TRIPLETS, "a,c,b,train"], OF_TRIPLETS).note
    )
