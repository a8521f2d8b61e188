"""Parts: listings and their segments, embedded into files, resumed, read and refused."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from pml_ext import load_run
from pml_ext.errors import ConfigError, DataError
from pml_ext_parts import service
from pml_ext_parts.listing import listed
from pml_ext_search.embedding.reading import listed as images_of
from pml_ext_train.data import FolderRules

from ..search.conftest import full, halve, killed
from .rows import rows_of, write_shard

pyarrow = pytest.importorskip("pyarrow", reason="needs the extra parquet")
parquet = pytest.importorskip("pyarrow.parquet")
pytestmark = pytest.mark.filterwarnings("ignore::pml_ext_search.SkippedImage")


def write_table(place, names, contents=None):
    """Write a table of paths, and of images if there are any."""
    columns = {"path": pyarrow.array(names, pyarrow.string())}
    if contents is not None:
        columns["image"] = pyarrow.array(contents, pyarrow.binary())
    parquet.write_table(pyarrow.table(columns), place / "images.parquet", row_group_size=30)
    return place / "images.parquet"


def test_all_kinds_of_listings_give_equal_embeddings(make, whole, folder, tmp_path, runs, command):
    told = []
    wanted = dict(zip(*map(rows_of(whole).get, ("path", "embedding")), strict=True))
    names = list(wanted)[::3]
    contents = {name: (folder / name).read_bytes() for name in names}
    (tmp_path / "a list.txt").write_text("".join(f"{name}\n" for name in [*names, "gone.png"]))
    command("embed", runs[0], folder, "--list", tmp_path / "a list.txt", "--part", "1/1", "-o", tmp_path / "listed")
    table = write_table(tmp_path, names, [*contents.values()])
    make(listener=told.append).embed_part(table, out=tmp_path / "of table")
    assert told == [], "the images of a table have no progress of their own"
    make().embed_part(f"file://{folder}", out=tmp_path / "of address")
    assert rows_of(tmp_path / "of address") == rows_of(whole)
    for place in ("listed", "of table"):
        found = rows_of(tmp_path / place)
        assert found["path"] == names
        assert np.allclose(found["embedding"], [wanted[name] for name in names], atol=1e-6)
    pytest.importorskip("webdataset", reason="needs the extra webdataset")
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
    one, *_, other = sorted(folder.glob("*/0*.png"))
    run = make()
    for file in (one, other):
        run.embed_part(write_table(tmp_path, ["a/1.png"], [file.read_bytes()]), out=tmp_path / "of table")
    assert np.allclose(rows_of(tmp_path / "of table")["embedding"][0], run.embed(other)[0], atol=1e-6)


@pytest.mark.parametrize("name", ["/photos/1.png", "s3://bucket/1.png", "../1.png", "", None])
def test_paths_of_a_table_stay_in_the_folder(tmp_path, name):
    table = write_table(tmp_path, [name])
    with pytest.raises(DataError, match="wanted one relative to the folder of the images"):
        listed(str(table))


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


pytest.importorskip("pyarrow", reason="needs the extra parquet")
pytestmark = pytest.mark.filterwarnings("ignore::pml_ext_search.SkippedImage")


def test_missing_objects_are_skipped_and_failures_named(folder, tmp_path):
    photos = shutil.copytree(folder / "3", tmp_path / "photos")
    (segment,) = listed(f"file://{photos}").segments
    (photos / segment.names[0]).unlink()
    first, second, *_ = [image.read() for _, _, image in segment.images()]
    assert first == b""
    assert second == (photos / segment.names[1]).read_bytes()
    with pytest.raises(DataError, match=rf"file://{photos}/a.png: cannot be read \(.*No space left"):
        segment._content_of("a.png", SimpleNamespace(open_input_file=full), "")


def test_names_in_shards_may_have_dots(make, folder, tmp_path):
    pytest.importorskip("webdataset", reason="needs the extra webdataset")
    written = ["./cats/1.png", "/dogs/2.png", "cats/IMG.2023.PNG", "cats/notes.txt"]
    write_shard(tmp_path / "one.tar", dict.fromkeys(written, (folder / "3" / "0003.png").read_bytes()))
    make().embed_part(str(tmp_path / "one.tar"), out=tmp_path / "parts")
    found = rows_of(tmp_path / "parts")
    names = ["cats/1.png", "dogs/2.png", "cats/IMG.2023.png"]  # webdataset gives endings in small letters
    assert [path.partition(".tar/")[2] for path in found["path"]] == names
    assert found["class"] == ["cats", "dogs", "cats"]


parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra parquet")


def stamps(place):
    return {file.name: file.stat().st_mtime_ns for file in place.iterdir()}


pytestmark = pytest.mark.filterwarnings("ignore::pml_ext_search.SkippedImage")


@pytest.mark.parametrize("parts", [1, 3, 7])
def test_parts_have_the_rows_of_one_pass(make, folder, tmp_path, whole, parts):
    run = make()
    for part in range(parts, 0, -1):
        run.embed_part(folder, part, parts, tmp_path / "parts")
    found = rows_of(tmp_path / "parts")
    embedded = run.embed_folder(folder)
    assert found == rows_of(whole)
    assert found["path"] == list(embedded.paths)
    assert found["class"] == list(embedded.classes)
    assert np.array_equal(np.array(found["embedding"], dtype=np.float32), embedded.embeddings.numpy())
    metadata = [parquet.read_metadata(file).metadata[b"pml_ext"] for file in whole.iterdir()]
    assert [name for about in metadata for name in json.loads(about)["skipped"]] == ["2/broken.png"]


def test_only_files_of_changed_images_are_rewritten(make, folder, tmp_path):
    run = make()
    images = shutil.copytree(folder, tmp_path / "some images")
    out = tmp_path / "parts"
    run.embed_part(images, out=out)
    before = stamps(out)
    run.embed_part(images, 1, 2, out)
    assert stamps(out) == before
    files = sorted(images.rglob("*.png"))
    shutil.copy(files[100], files[5])
    next(out.glob("*00003-of*")).unlink()
    run.embed_part(images, out=out)
    assert {name[11:16] for name, stamp in stamps(out).items() if before[name] != stamp} == {"00000", "00003"}
    shutil.copy(files[100], images / "9" / "zzz.png")
    with pytest.raises(ConfigError, match="another listing of images; type -o FOLDER"):
        run.embed_part(images, out=out)


def test_a_killed_part_resumes_beside_another(make, tmp_path, folder):
    images = tmp_path / "images"
    out = tmp_path / "parts"
    for copy in range(8):
        shutil.copytree(folder, images / str(copy))
    killed(lambda: make(workers=0).embed_part(images, out=out), 5)
    before = stamps(out)
    written = {name for name in before if name.startswith("embeddings")}
    assert 0 < len(written) < len(listed(images_of(images)).segments)
    with ThreadPoolExecutor(2) as pool:
        [*pool.map(lambda name: make(name, workers=0).embed_part(images, out=out), ["one", "two"])]
    assert {name for name in written if stamps(out)[name] != before[name]} == set()
    paths = rows_of(out)["path"]
    assert len(paths) == len(set(paths)) == 8 * 200


reading = pytest.importorskip("pml_ext_parts.reading", reason="needs the extra parquet", exc_type=ImportError)
pytestmark = pytest.mark.filterwarnings("ignore::pml_ext_search.SkippedImage")


def test_missing_damaged_and_other_parts_are_named(make, runs, whole, tmp_path, folder):
    run = make()
    out = shutil.copytree(whole, tmp_path / "parts")
    files = sorted(out.iterdir())
    with pytest.raises(DataError, match="of another network"):
        load_run(runs[1], "cpu", store=tmp_path / "other").write_index(out)
    halve(files[1])
    with pytest.raises(DataError, match=f"{files[1].name}: no Parquet file, or cut"):
        run.write_index(out)
    run.embed_part(folder, out=out)
    assert rows_of(out) == rows_of(whole)
    files[2].unlink()
    with pytest.raises(DataError, match=r"1 of 4 files are not there, number 2 first"):
        run.write_index(out)
    with pytest.raises(DataError, match="no embeddings; type: pml-ext embed"):
        run.write_index(tmp_path / "nothing")


pyarrow = pytest.importorskip("pyarrow", reason="needs the extra parquet")
parquet = pytest.importorskip("pyarrow.parquet")


def test_an_unreadable_table_is_left_alone(tmp_path):
    (tmp_path / "images.parquet").mkdir()
    (tmp_path / "other.parquet").write_bytes(b"no table")
    for file in ("images.parquet", "other.parquet"):
        with pytest.raises(DataError, match="or cut .*; wanted one Parquet file with the columns path and image"):
            listed(str(tmp_path / file))


def test_files_of_embeddings_are_known_by_metadata(whole, tmp_path):
    from pml_ext_parts import tables

    file = sorted(whole.iterdir())[0]
    assert tables.about(file)["segment"]
    table = parquet.read_table(file)
    assert tables.embeddings_of(table).tolist() == table["embedding"].to_pylist()
    other = write_table(tmp_path, ["1.png"])
    with pytest.raises(DataError, match="images.parquet: no embeddings of pml-ext embed --part"):
        tables.about(other)
    with pytest.raises(DataError, match="images.parquet: cannot be read"):
        tables.column(other, 0, "image")


pytest.importorskip("pyarrow", reason="needs the extra parquet")
pytestmark = pytest.mark.filterwarnings("ignore::pml_ext_search.SkippedImage")


def test_parts_tell_their_images_and_files(make, folder, tmp_path):
    written = [service.write(make().images, images_of(folder), part, 3, tmp_path) for part in (1, 2, 3)]
    files = len([*tmp_path.glob("*.parquet")])
    assert sum(each.images for each in written) == 200
    assert sum(each.files for each in written) == files
    assert {each.files_of_all_parts for each in written} == {files}


def test_images_are_embedded_without_files(make, folder, whole):
    found = service.embedded(make().images, images_of(folder))
    assert found.folder == str(folder)
    assert [name for rows in found.rows for name in rows.names] == rows_of(whole)["path"]


pyarrow = pytest.importorskip("pyarrow", reason="needs the extra parquet")
parquet = pytest.importorskip("pyarrow.parquet")
