"""Segments: the images of an address and of shards."""

import shutil
from types import SimpleNamespace

import pytest

from pml_ext.errors import DataError
from pml_ext_parts.listing import listed

from .rows import rows_of, write_shard

pytest.importorskip("pyarrow", reason="needs the extra parquet")
pytestmark = pytest.mark.filterwarnings("ignore::pml_ext_search.SkippedImage")


def test_missing_objects_are_skipped_and_failures_named(make, folder, tmp_path):
    shutil.copytree(folder / "3", tmp_path / "photos")
    address = f"file://{tmp_path / 'photos'}"
    (segment,) = listed(address).segments
    first = tmp_path / "photos" / segment.names[0]
    first.unlink()
    content = [image.read() for _, _, image in segment.images()]
    assert content[0] == b""
    assert content[1] == (tmp_path / "photos" / segment.names[1]).read_bytes()

    def slow_down(path):
        raise OSError("slow down")

    with pytest.raises(DataError, match=rf"{address}/a.png: cannot be read \(.*slow down\)"):
        segment._content_of("a.png", SimpleNamespace(open_input_file=slow_down), "")


def test_names_in_shards_may_have_dots(make, folder, tmp_path):
    pytest.importorskip("webdataset", reason="needs the extra webdataset")
    content = next(folder.glob("3/*.png")).read_bytes()
    written = ["./cats/1.png", "/dogs/2.png", "cats/IMG.2023.PNG", "cats/notes.txt"]
    write_shard(tmp_path / "one.tar", dict.fromkeys(written, content))
    make().embed_part(str(tmp_path / "one.tar"), out=tmp_path / "parts")
    found = rows_of(tmp_path / "parts")
    names = ["cats/1.png", "dogs/2.png", "cats/IMG.2023.png"]  # webdataset gives endings in small letters
    assert [path.partition(".tar/")[2] for path in found["path"]] == names
    assert found["class"] == ["cats", "dogs", "cats"]
