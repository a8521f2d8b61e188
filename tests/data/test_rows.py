"""CSV files as spreadsheets write them; what cannot be read is refused by the tables and lists that use it."""

import pytest

from pml_ext.data.rows import is_empty, read_rows, rows_of_frame
from pml_ext.errors import DataError


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_the_separators_of_spreadsheets(tmp_path, separator):
    file = tmp_path / "mine.csv"
    lines = [["a", "b"], ["1", '"x\ny"'], ["2", "z"]]
    file.write_text("\n".join(separator.join(line) for line in lines), "utf-8-sig")
    columns, rows = read_rows(file, "table:FILE.csv")
    assert columns == ["a", "b"]
    assert rows == [("line 3", {"a": "1", "b": "x\ny"}), ("line 4", {"a": "2", "b": "z"})]


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
