"""Parts in an index: complete, damaged and missing ones, and those of an address."""

import shutil

import pytest

from pml_ext import load_run
from pml_ext.errors import DataError

from .rows import rows_of

reading = pytest.importorskip("pml_ext_parts.reading", reason="needs the extra parquet", exc_type=ImportError)
pytestmark = pytest.mark.filterwarnings("ignore::pml_ext_search.SkippedImage")


def test_missing_damaged_and_other_parts_are_named(make, runs, whole, tmp_path, folder):
    out = tmp_path / "parts"
    run = make()
    shutil.copytree(whole, out)
    files = sorted(out.iterdir())
    with pytest.raises(DataError, match="of another network"):
        load_run(runs[1], "cpu", store=tmp_path / "other").write_index(out)
    files[1].write_bytes(files[1].read_bytes()[:100])
    with pytest.raises(DataError, match=f"{files[1].name}: no Parquet file, or cut"):
        run.write_index(out)
    run.embed_part(folder, out=out)
    assert rows_of(out) == rows_of(whole)
    files[2].unlink()
    with pytest.raises(DataError, match=r"1 of 4 files are not there, number 2 first"):
        run.write_index(out)
    with pytest.raises(DataError, match="no embeddings; type: pml-ext embed"):
        run.write_index(tmp_path / "nothing")
