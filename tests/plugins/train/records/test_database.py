"""The database of a run's records: damaged, in use."""

import sqlite3
from contextlib import closing

import pytest

from pml_ext.errors import DataError

from ..training.written_records import csv_rows, record, tables

pytestmark = pytest.mark.usefixtures("numbers_of_equal_width")


@pytest.mark.parametrize("content", [b"no database", b"SQLite format 3\0" + bytes(5000)])
def test_a_damaged_database_is_put_aside(tmp_path, content):
    record(tmp_path, 1, 6)
    folder = tmp_path / "records"
    words = []
    (folder / "of-a-component.csv").write_text("epoch,density\n1,2\n")
    (folder / "logs.db").write_bytes(content)
    record(tmp_path, 7, 8, words.append)
    (word,) = words
    assert word.startswith(f"{folder / 'logs.db'} is damaged (")
    assert word.endswith("was renamed to damaged.db; the records start again at iteration 7")
    assert (folder / "damaged.db").read_bytes() == content
    assert [row[0] for row in csv_rows(folder / "loss_histories.csv")] == ["~iteration~", "7", "8"]
    assert (folder / "of-a-component.csv").exists()


def test_a_database_that_is_read_is_not_damaged(tmp_path, monkeypatch):
    record(tmp_path / "my run", 1, 6)
    folder = tmp_path / "my run" / "records"
    words = []
    before = tables(tmp_path / "my run")
    monkeypatch.setattr("pml_ext_train.records.database._LOCK_SECONDS", 0.1, raising=False)
    with closing(sqlite3.connect(folder / "logs.db")) as monitor:
        rows = monitor.execute('SELECT "~iteration~" FROM loss_histories')
        assert rows.fetchone() == (1,)  # the others are left, which keeps the file locked
        with pytest.raises(
            DataError,
            match=r"logs.db: .* \(database is locked\)\. .*type: fuser '.*/my run/records/logs.db'.* repeat the",
        ):
            record(tmp_path / "my run", 5, 8, words.append)
        rows.close()
    assert words == []
    assert not (folder / "damaged.db").exists()
    assert tables(tmp_path / "my run") == before
