"""Rows of CSV files, Parquet files and data frames."""

import csv

import pytest

from pml_ext.errors import DataError
from pml_ext_train.data.rows import is_empty, read_rows, rows_of_frame, table_text
from pml_ext_train.files import write_text


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_separators_of_spreadsheets_are_recognized(tmp_path, separator):
    file = tmp_path / "mine.csv"
    lines = [["a", "b"], ["1", '"x\ny"'], ["2", "z"]]
    file.write_text("\n".join(separator.join(line) for line in lines), "utf-8-sig")
    rows = [("line 3", {"a": "1", "b": "x\ny"}), ("line 4", {"a": "2", "b": "z"})]
    assert read_rows(file, "table:FILE.csv") == (["a", "b"], rows)


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
    ("content", "message"),
    [
        (b"path,class\ncaf\xe9.png,a\nb.png,caf\xe9\n", r"as a table \(bytes that are not UTF-8, line 3\); table:FILE"),
        (b"a,b,a\n1,2,3\n", "mine.csv: 2 columns have the name a; rename or delete one"),
        (b"a,b\n1,2\n1,x,y\n", "line 3: 'y' is beyond the 2 columns; put cells that contain ',' in quotes"),
    ],
)
def test_files_with_wrong_content_are_refused(tmp_path, content, message):
    (tmp_path / "mine.csv").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_rows(tmp_path / "mine.csv", "table:FILE.csv")


CELLS = {"label": [3.0, None], "path": ["a.jpg", "b.jpg"], "x_1": [1.5, None]}


def parquet_rows(place):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table(CELLS), place / "mine.parquet")
    return read_rows(place / "mine.parquet", "table:FILE.csv")


def frame_rows(place):
    return rows_of_frame(pytest.importorskip("pandas").DataFrame(CELLS))


@pytest.mark.parametrize("read", [parquet_rows, frame_rows])
def test_other_tables_have_cells_like_csv(tmp_path, read):
    columns, (first, (place, second)) = read(tmp_path)
    assert columns == ["label", "path", "x_1"]
    assert first == ("row 0", {"label": "3", "path": "a.jpg", "x_1": "1.5"})
    assert (place, second["path"], is_empty(second["label"]), is_empty(second["x_1"])) == ("row 1", "b.jpg", True, True)


def test_a_damaged_parquet_file_is_refused(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "bad.parquet").write_bytes(b"no table")
    with pytest.raises(DataError, match=r"bad.parquet: cannot be read as a .parquet file .* write it again"):
        read_rows(tmp_path / "bad.parquet", "table:FILE.csv")
