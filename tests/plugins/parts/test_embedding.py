"""Embedding of segments, without progress of its own."""

import pytest

pyarrow = pytest.importorskip("pyarrow", reason="needs the extra parquet")
parquet = pytest.importorskip("pyarrow.parquet")


def test_images_of_a_table_report_no_progress(make, folder, tmp_path):
    told = []
    names = [path.name for path in sorted(folder.glob("3/*.png"))[:2]]
    content = [(folder / "3" / name).read_bytes() for name in names]
    table = pyarrow.table({"path": names, "image": pyarrow.array(content, pyarrow.binary())})
    parquet.write_table(table, tmp_path / "images.parquet")
    make(listener=told.append).embed_part(tmp_path / "images.parquet", out=tmp_path / "parts")
    assert told == []
