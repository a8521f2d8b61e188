"""Listings: of files, tables, shards and addresses."""

import numpy as np
import pytest

from pml_ext.errors import DataError
from pml_ext_parts.listing import listed
from pml_ext_train.data import FolderRules

from .rows import rows_of, write_shard

pyarrow = pytest.importorskip("pyarrow", reason="needs the extra parquet")
parquet = pytest.importorskip("pyarrow.parquet")
pytestmark = pytest.mark.filterwarnings("ignore::pml_ext_search.SkippedImage")


def test_all_kinds_of_listings_give_equal_embeddings(make, whole, folder, tmp_path, runs, command):
    wanted = dict(zip(*map(rows_of(whole).get, ("path", "embedding")), strict=True))
    names = list(wanted)[::3]
    (tmp_path / "a list.txt").write_text("".join(f"{name}\n" for name in [*names, "gone.png"]))
    command("embed", runs[0], folder, "--list", tmp_path / "a list.txt", "--part", "1/1", "-o", tmp_path / "listed")
    content = [(folder / name).read_bytes() for name in names]
    table = pyarrow.table({"path": names, "image": pyarrow.array(content, pyarrow.binary())})
    parquet.write_table(table, tmp_path / "images.parquet", row_group_size=30)
    make().embed_part(tmp_path / "images.parquet", out=tmp_path / "of table")
    make().embed_part(f"file://{folder}", out=tmp_path / "of address")
    assert rows_of(tmp_path / "of address") == rows_of(whole)
    for place in ("listed", "of table"):
        found = rows_of(tmp_path / place)
        assert found["path"] == names
        assert np.allclose(found["embedding"], [wanted[name] for name in names], atol=1e-6)
    pytest.importorskip("webdataset", reason="needs the extra webdataset")
    contents = dict(zip(names, content, strict=True))
    for shard in range(2):
        write_shard(tmp_path / f"shard-{shard}.tar", {name: contents[name] for name in names[shard::2]})
    make().embed_part(str(tmp_path / "shard-{0..1}.tar"), out=tmp_path / "of shards")
    found = rows_of(tmp_path / "of shards")
    order = [*names[::2], *names[1::2]]
    assert [path.partition(".tar/")[2] for path in found["path"]] == order
    assert found["class"] == [name.partition("/")[0] for name in order]
    assert np.allclose(found["embedding"], [wanted[name] for name in order], atol=1e-6)
    run = make("shards")
    run.write_index(tmp_path / "of shards")
    (answer,) = run.query(folder / names[0], k=3, within=names[0][0])
    assert answer.distances[0] < 1e-3
    assert answer.classes == [names[0][0]] * 3
    assert run.gallery().check() == ([], [])
    (tmp_path / "shard-1.tar").unlink()
    gone, changed = run.gallery().check()
    assert (len(gone), changed) == (len(names[1::2]), [])


def test_a_rewritten_table_or_shard_is_embedded_again(make, folder, tmp_path):
    one, other = (file.read_bytes() for file in sorted(folder.glob("*/*.png"))[:150:149])
    run = make("again")
    embedded = []
    for content in (one, other):
        parquet.write_table(pyarrow.table({"path": ["a/1.png"], "image": [content]}), tmp_path / "images.parquet")
        embedded.append(run.embed_part(tmp_path / "images.parquet", out=tmp_path / "of table"))
    found = rows_of(tmp_path / "of table")["embedding"][0]
    (tmp_path / "other.png").write_bytes(other)
    assert np.allclose(found, run.embed(tmp_path / "other.png")[0], atol=1e-6)


@pytest.mark.parametrize("name", ["/photos/1.png", "s3://bucket/1.png", "../1.png", "", None])
def test_paths_of_a_table_stay_in_the_folder(make, tmp_path, name):
    parquet.write_table(pyarrow.table({"path": pyarrow.array([name], pyarrow.string())}), tmp_path / "images.parquet")
    with pytest.raises(DataError, match="wanted one relative to the folder of the images"):
        listed(str(tmp_path / "images.parquet"))


def test_patterns_leave_out_images_at_an_address(tmp_path):
    for name in ("a/1.png", "a/2.png", "b/3.png", "c/4.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".pml-ext-ignore").write_text("b/\n")
    with pytest.warns(UserWarning, match="left out 2 images by .pml-ext-ignore, /a/1.png, x; nothing else matches 'x'"):
        work = listed(f"file://{tmp_path}", FolderRules.of(["/a/1.png", "x"]))
    assert [name for segment in work.segments for name in segment.names] == ["a/2.png", "c/4.png"]
    with pytest.raises(DataError, match="no image is left"):
        listed(f"file://{tmp_path}", FolderRules.of(["*"]))
