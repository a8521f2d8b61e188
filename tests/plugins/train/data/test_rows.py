"""CSV files as spreadsheets write them; what cannot be read is refused by the tables and lists that use it."""

import csv

import pytest

from pml_ext.errors import DataError
from pml_ext_train.data.rows import is_empty, read_rows, rows_of_frame, table_text
from pml_ext_train.files import write_text


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_the_separators_of_spreadsheets(tmp_path, separator):
    file = tmp_path / "mine.csv"
    lines = [["a", "b"], ["1", '"x\ny"'], ["2", "z"]]
    file.write_text("\n".join(separator.join(line) for line in lines), "utf-8-sig")
    columns, rows = read_rows(file, "table:FILE.csv")
    assert columns == ["a", "b"]
    assert rows == [("line 3", {"a": "1", "b": "x\ny"}), ("line 4", {"a": "2", "b": "z"})]


def test_own_tables_are_read_back_and_run_no_formula(tmp_path):
    names = ["a\rb", "a\nb", 'a"b', "caf\udce9", "=1+1", "+a", "-a", "@a", "'=a", "''@a", "'a", "\t=1", "plain"]
    file = tmp_path / "mine.csv"
    write_text(file, table_text(["path", "n"], [(name, -1) for name in names]))
    assert [row for _, row in read_rows(file, "table:FILE.csv")[1]] == [{"path": name, "n": "-1"} for name in names]
    with file.open(newline="", encoding="utf-8", errors="surrogateescape") as opened:
        cells = [row[0] for row in csv.reader(opened)]
    assert not [cell for cell in cells if cell[0] in "=+-@\t\r"]


def test_rows_without_a_value_are_left_out(tmp_path):
    (tmp_path / "mine.csv").write_text("a,b\n1,2\n,\n , ,\n3,\n,,\n\n")
    found = read_rows(tmp_path / "mine.csv", "pairs:FILE.csv")[1]
    assert found == [("line 2", {"a": "1", "b": "2"}), ("line 5", {"a": "3", "b": ""})]


def test_bytes_that_are_no_text_name_their_line(tmp_path):
    (tmp_path / "mine.csv").write_bytes(b"path,class\ncaf\xe9.png,a\nb.png,caf\xe9\n")
    with pytest.raises(DataError, match=r"as a table \(bytes that are not UTF-8, line 3\); table:FILE.csv must be"):
        read_rows(tmp_path / "mine.csv", "table:FILE.csv")


def test_an_empty_file_has_no_columns(tmp_path):
    (tmp_path / "mine.csv").touch()
    assert read_rows(tmp_path / "mine.csv", "pairs:FILE.csv") == ([], [])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b,a\n1,2,3\n", "mine.csv: 2 columns have the name a; rename or delete one"),
        ("a,b\n1,2\n1,x,y\n", "mine.csv, line 3: 'y' is beyond the 2 columns; a cell with ',' in it needs quotes"),
    ],
)
def test_cells_of_no_column_of_their_own(tmp_path, text, message):
    (tmp_path / "mine.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        read_rows(tmp_path / "mine.csv", "pairs:FILE.csv")


def test_spaces_around_names_and_empty_cells_at_the_end(tmp_path):
    (tmp_path / "mine.csv").write_text("a, b \n1,2,,\n")
    assert read_rows(tmp_path / "mine.csv", "pairs:FILE.csv") == (["a", "b"], [("line 2", {"a": "1", "b": "2"})])


def test_parquet_files_and_frames_have_the_cells_of_a_csv_file(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    cells = {"label": [3.0, None], "path": ["a.jpg", "b.jpg"], "x_1": [1.5, None]}
    parquet.write_table(pyarrow.table(cells), tmp_path / "mine.parquet")
    wanted = [
        ("row 0", {"label": "3", "path": "a.jpg", "x_1": "1.5"}),
        ("row 1", {"label": "", "path": "b.jpg", "x_1": ""}),
    ]
    assert read_rows(tmp_path / "mine.parquet", "table:FILE.csv") == (["label", "path", "x_1"], wanted)
    (tmp_path / "bad.parquet").write_bytes(b"no table")
    with pytest.raises(DataError, match=r"bad.parquet: cannot be read as a .parquet file .* write it again"):
        read_rows(tmp_path / "bad.parquet", "table:FILE.csv")

    pandas = pytest.importorskip("pandas")
    columns, rows = rows_of_frame(pandas.DataFrame(cells))
    assert columns == ["label", "path", "x_1"]
    assert rows[0] == wanted[0]
    assert is_empty(rows[1][1]["label"])
