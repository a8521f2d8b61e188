"""Parts of a listing as Parquet: the same rows however they are cut, resumed, damaged and incomplete ones."""

import io
import json
import shutil
import tarfile
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from pml_ext import load_run
from pml_ext.errors import ConfigError, DataError

pyarrow = pytest.importorskip("pyarrow", reason="needs the extra parquet")
parquet = pytest.importorskip("pyarrow.parquet")
from pml_ext_search import parts  # noqa: E402
from pml_ext_search.parts import listed  # noqa: E402

from .conftest import killed  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::pml_ext_search.SkippedImage")


def rows_of(place):
    table = pyarrow.concat_tables([parquet.read_table(file) for file in sorted(place.glob("*.parquet"))])
    return table.select(["path", "class", "embedding"]).to_pydict()


def stamps(place):
    return {file.name: file.stat().st_mtime_ns for file in place.iterdir()}


@pytest.fixture(scope="module")
def whole(runs, folder, tmp_path_factory):
    return load_run(runs[0], "cpu").embed_part(folder, out=tmp_path_factory.mktemp("whole") / "parts")


@pytest.mark.parametrize("parts", [1, 3, 7])
def test_parts_have_the_rows_of_one_pass_over_the_folder(make, folder, tmp_path, whole, parts):
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


def test_a_file_is_written_again_for_changed_images_alone(make, folder, tmp_path):
    run = make()
    images = tmp_path / "some images"
    out = tmp_path / "parts"
    shutil.copytree(folder, images)
    run.embed_part(images, out=out)
    before = stamps(out)
    run.embed_part(images, 1, 2, out)
    assert stamps(out) == before
    changed = sorted(images.rglob("*.png"))[5]
    shutil.copy(sorted(images.rglob("*.png"))[100], changed)
    next(out.glob("*00003-of*")).unlink()
    run.embed_part(images, out=out)
    assert {name[11:16] for name, stamp in stamps(out).items() if before[name] != stamp} == {"00000", "00003"}
    (images / "9" / "zzz.png").write_bytes(changed.read_bytes())
    with pytest.raises(ConfigError, match="another listing of images; type -o FOLDER"):
        run.embed_part(images, out=out)


def test_a_killed_part_goes_on_and_two_at_once_do_no_harm(make, tmp_path, folder):
    images = tmp_path / "images"
    out = tmp_path / "parts"
    for copy in range(8):
        shutil.copytree(folder, images / str(copy))
    killed(lambda: make(workers=0).embed_part(images, out=out), 5)
    before = stamps(out)
    written = {name for name in before if name.startswith("embeddings")}
    total = len(listed(images).segments)
    assert 0 < len(written) < total
    with ThreadPoolExecutor(2) as pool:
        [*pool.map(lambda name: make(name, workers=0).embed_part(images, out=out), ["one", "two"])]
    assert {name for name in written if stamps(out)[name] != before[name]} == set()
    paths = rows_of(out)["path"]
    assert len(paths) == len(set(paths)) == 8 * 200


def test_index_takes_parts_up_without_embedding(make, folder, whole, monkeypatch, few, command, runs, tmp_path):
    run = make("from parts")
    monkeypatch.setattr(run.images, "_forward", None)
    assert len(run.write_index(whole)) == 200
    assert run.write_index(whole).changes == (0, 0, 0, 200)
    monkeypatch.undo()
    own = make("own").index(folder)
    assert np.array_equal(own.embedded.embeddings.numpy(), run.gallery().embedded.embeddings.numpy())
    assert list(run.gallery().embedded.paths) == list(own.embedded.paths)
    told = command("index", runs[0], "--from", whole, "--store", tmp_path / "told", "--json")
    assert json.loads(told.stdout)["images"] == 200


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


def test_a_list_a_table_and_shards_have_the_folders_embeddings(make, whole, folder, tmp_path, runs, command):
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
    for shard in range(2):
        with tarfile.open(tmp_path / f"shard-{shard}.tar", "w") as tar:
            for name in names[shard::2]:
                entry = tarfile.TarInfo(name)
                entry.size = (folder / name).stat().st_size
                tar.addfile(entry, io.BytesIO((folder / name).read_bytes()))
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


def test_an_object_that_is_gone_is_skipped_and_a_failure_named(make, folder, tmp_path):
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


def test_a_table_that_cannot_be_read_is_left_to_its_owner(tmp_path):
    (tmp_path / "images.parquet").mkdir()
    (tmp_path / "other.parquet").write_bytes(b"no table")
    for file in ("images.parquet", "other.parquet"):
        with pytest.raises(DataError, match="or cut .*; wanted one Parquet file with the columns path and image"):
            listed(tmp_path / file)


def test_images_of_a_table_tell_no_progress_of_their_batch(make, folder, tmp_path):
    told = []
    names = [path.name for path in sorted(folder.glob("3/*.png"))[:2]]
    content = [(folder / "3" / name).read_bytes() for name in names]
    table = pyarrow.table({"path": names, "image": pyarrow.array(content, pyarrow.binary())})
    parquet.write_table(table, tmp_path / "images.parquet")
    make(listener=told.append).embed_part(tmp_path / "images.parquet", out=tmp_path / "parts")
    assert told == []


def shard_of(place, names, content):
    with tarfile.open(place, "w") as tar:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


def test_names_in_shards_are_as_tar_and_cameras_write_them(make, folder, tmp_path):
    pytest.importorskip("webdataset", reason="needs the extra webdataset")
    content = next(folder.glob("3/*.png")).read_bytes()
    shard_of(tmp_path / "one.tar", ["./cats/1.png", "/dogs/2.png", "cats/IMG.2023.PNG", "cats/notes.txt"], content)
    make().embed_part(str(tmp_path / "one.tar"), out=tmp_path / "parts")
    found = rows_of(tmp_path / "parts")
    names = ["cats/1.png", "dogs/2.png", "cats/IMG.2023.png"]  # webdataset gives endings in small letters
    assert [path.partition(".tar/")[2] for path in found["path"]] == names
    assert found["class"] == ["cats", "dogs", "cats"]


def test_a_table_or_shard_that_was_written_again_is_embedded_again(make, folder, tmp_path):
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
        listed(tmp_path / "images.parquet")


def test_embeddings_of_an_address_are_indexed_for_a_folder_here(make, whole, tmp_path, monkeypatch):
    run = make("of an address")
    about = parts._about
    monkeypatch.setattr(parts, "_about", lambda file: about(file) | {"folder": "s3://bucket/photos"})
    with pytest.raises(ConfigError, match=r"the images are of s3://bucket/photos; type: pml-ext index RUN FOLDER"):
        run.write_index(whole)
    assert len(run.write_index(whole, tmp_path)) == 200
    with pytest.raises(ConfigError, match="below a folder of this machine"):
        listed(["1.png"], "s3://bucket/photos")
