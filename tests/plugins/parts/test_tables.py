"""Parquet files that cannot be read, and what to do about them."""

import pytest

from pml_ext.errors import DataError
from pml_ext_parts.listing import listed

pyarrow = pytest.importorskip("pyarrow", reason="needs the extra parquet")
parquet = pytest.importorskip("pyarrow.parquet")

from pml_ext_parts import tables  # noqa: E402


def test_an_unreadable_table_is_left_alone(tmp_path):
    (tmp_path / "images.parquet").mkdir()
    (tmp_path / "other.parquet").write_bytes(b"no table")
    for file in ("images.parquet", "other.parquet"):
        with pytest.raises(DataError, match="or cut .*; wanted one Parquet file with the columns path and image"):
            listed(str(tmp_path / file))


def test_files_of_embeddings_are_known_by_metadata(whole, tmp_path):
    file = sorted(whole.iterdir())[0]
    assert tables.about(file)["segment"]
    table = parquet.read_table(file)
    assert tables.embeddings_of(table).tolist() == table["embedding"].to_pylist()
    parquet.write_table(pyarrow.table({"path": ["1.png"]}), tmp_path / "other.parquet")
    with pytest.raises(DataError, match="other.parquet: no embeddings of pml-ext embed --part"):
        tables.about(tmp_path / "other.parquet")
    with pytest.raises(DataError, match="other.parquet: cannot be read"):
        tables.column(tmp_path / "other.parquet", 0, "image")
