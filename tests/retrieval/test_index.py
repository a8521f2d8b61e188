"""Indexes on the disk: whole or refused, whatever becomes of their files and of who writes them."""

import dataclasses
import hashlib
import json
import os
import shlex
import shutil
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from pml_ext import load_run
from pml_ext.errors import DataError
from pml_ext.files import read_json, write_json
from pml_ext.retrieval import Embedded, TrainedRun
from pml_ext.retrieval.table import Paths

FACTORIES = ("", "IVF2,Flat")


class Killed(BaseException):
    """What a process does not live to handle."""


def kill_at(patch, step):
    """The disk does what it is told ``step`` times, and nothing from then on."""
    done = []

    def deadly(real):
        def call(*arguments, **options):
            if len(done) >= step:
                raise Killed
            done.append(real)
            return real(*arguments, **options)

        return call

    for place, name in ((os, "fsync"), (os, "replace"), (Path, "unlink"), (np, "save")):
        patch.setattr(place, name, deadly(getattr(place, name)))


def check_whole(run, place, folders):
    """The index is that of one of the folders: paths, embeddings, and what faiss finds."""
    gallery = run.gallery(place)
    folder = gallery.embedded.folder
    assert folder in folders
    paths = [path.relative_to(folder).as_posix() for path in sorted(folder.glob("*/*.png"))]
    assert gallery.embedded.paths == paths
    points = run.embed(folder)
    torch.testing.assert_close(gallery.embedded.embeddings, points)
    image = torch.full((1, 8, 8), 90, dtype=torch.uint8)
    (answer,) = run.query([image], len(paths), gallery)
    distances = (points - run.embed([image])).norm(dim=1)
    assert answer.distances == pytest.approx(distances.sort().values.tolist(), abs=1e-3)
    assert [distances[paths.index(path)].item() for path in answer.paths] == pytest.approx(answer.distances, abs=1e-3)
    return folder


@pytest.mark.parametrize("factory", FACTORIES)
def test_a_kill_between_any_two_steps_leaves_the_old_index_or_the_new(runs_one, few, tmp_path, factory):
    run, seen = runs_one, []
    run.index(few[0], tmp_path / "old", factory)
    for step in range(40):
        place = tmp_path / str(step)
        shutil.copytree(tmp_path / "old", place)
        try:
            with pytest.MonkeyPatch.context() as patch:
                kill_at(patch, step)
                run.index(few[1], place, factory)
            break
        except Killed:
            seen.append(check_whole(run, place, few))
            run.index(few[1], place, factory)
            assert check_whole(run, place, few) == few[1]
            assert len(list(place.iterdir())) == (4 if factory else 3), "left-overs"
    assert len(seen) > 4
    assert seen == sorted(seen, reverse=True), "the new index stands from some step on"  # "old" > "new"
    assert set(seen) == set(few)


@pytest.mark.parametrize("factory", FACTORIES)
def test_a_full_disk_leaves_the_old_index_and_nothing_beside(runs_one, few, tmp_path, monkeypatch, factory):
    run, place = runs_one, tmp_path / "index"
    run.index(few[0], place, factory)
    before = sorted(place.iterdir())

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            run.index(few[1], place, factory)
    assert sorted(place.iterdir()) == before
    assert check_whole(run, place, few) == few[0]


def test_left_overs_go_with_the_next_index_and_other_files_stay(runs_one, few, tmp_path):
    for name in (
        ".embeddings.npz.123.tmp",
        ".index.faiss.7.tmp",
        ".index.json.7.tmp",
        "embeddings-0123456789abcdef.npz",
        "embeddings-0123456789abcdef.npy",
        "images-0123456789abcdef.arrow",
        "faiss-0123456789abcdef.faiss",
    ):
        (tmp_path / name).write_bytes(b"left over")
    mine = {"embeddings.npz", "notes.txt", "embeddings-of-mine.npz"}
    for name in mine:
        (tmp_path / name).write_bytes(b"mine")
    run_files = runs_one.index(few[0], tmp_path)
    assert {path.name for path in tmp_path.iterdir()} > mine
    assert len(list(tmp_path.iterdir())) == len(mine) + 3
    assert run_files.place == tmp_path


def test_a_reader_that_is_overtaken_reads_the_new_index(runs_one, few, tmp_path, monkeypatch):
    from pml_ext.retrieval import index

    runs_one.index(few[0], tmp_path, "IVF2,Flat")
    real = index._read_parts

    def overtaken(*arguments):
        monkeypatch.setattr(index, "_read_parts", real)
        runs_one.index(few[1], tmp_path, "IVF2,Flat")
        return real(*arguments)

    monkeypatch.setattr(index, "_read_parts", overtaken)
    assert check_whole(runs_one, tmp_path, few) == few[1]


@pytest.mark.skipif(sys.platform == "win32", reason="has no flock")
def test_a_second_writer_waits(runs_one, few, tmp_path):
    import fcntl

    runs_one.index(few[0], tmp_path)
    before = {path.name for path in tmp_path.iterdir()}
    handle = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    second = threading.Thread(target=runs_one.index, args=(few[1], tmp_path))
    second.start()
    second.join(0.5)
    assert second.is_alive()
    assert {path.name for path in tmp_path.iterdir()} == before
    os.close(handle)
    second.join(60)
    assert check_whole(runs_one, tmp_path, few) == few[1]


def empty(path):
    path.write_bytes(b"")


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def garbage(path):
    path.write_bytes(b"\x80garbage\xff" * 50)


def one_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def another_type(path):
    path.write_text("[]")


def another_value(path):
    path.write_text(json.dumps(json.loads(path.read_text()) | {"images": "20"}))


@pytest.mark.parametrize(
    ("part", "damage"),
    [
        *((part, damage) for part in ("index.json", "*.npy", "*.arrow", "*.faiss") for damage in (empty, cut, garbage)),
        *((part, damage) for part in ("*.npy", "*.arrow", "*.faiss") for damage in (one_byte, Path.unlink)),
        ("index.json", another_type),
        ("index.json", another_value),
    ],
)
def test_a_damaged_file_is_one_line_with_its_path_and_what_to_type(runs_one, few, tmp_path, part, damage):
    runs_one.index(few[0], tmp_path, "IVF2,Flat")
    (path,) = tmp_path.glob(part)
    damage(path)
    check_refused(runs_one, tmp_path, path)


def check_refused(run, place, path):
    with pytest.raises(DataError) as caught:
        run.gallery(place)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert f"type: pml-ext index {run.folder} " in text
    assert f"-o {place}" in text
    assert "\n" not in text


def test_what_it_says_to_type_mends_it(command, runs, few, tmp_path):
    place = tmp_path / "an index"
    load_run(runs[0], "cpu").index(few[0], place, "IVF2,Flat")
    empty(next(place.glob("*.npy")))
    image = next(few[0].glob("*/*.png"))
    done = command("query", runs[0], image, "--gallery", place, "--picture", tmp_path / "q.png")
    assert (done.returncode, done.stdout) == (2, "")
    line = shlex.split(done.stderr.partition("type: pml-ext ")[2])
    assert line == ["index", str(runs[0]), str(few[0]), "-o", str(place), "--index", "IVF2,Flat"]
    assert command(*line).returncode == 0
    assert command("query", runs[0], image, "--gallery", place, "--picture", tmp_path / "q.png").returncode == 0


# Layouts


def old_layout(place: Path, run: TrainedRun, folder: Path, checksums: bool) -> None:
    """An index as earlier versions wrote it: one file with embeddings and paths, at first without checksums."""
    place.mkdir()
    name = "embeddings-0123456789abcdef.npz" if checksums else "embeddings.npz"
    np.savez(place / name, embeddings=np.zeros((20, 64), np.float32), paths=np.array(["a.png"] * 20))
    about = {
        "run": str(run.folder),
        "identity": run.identity,
        "folder": str(folder.resolve()),
        "factory": "",
        "images": 20,
        "skipped": {},
    }
    part = {"file": name, "sha256": hashlib.sha256((place / name).read_bytes()).hexdigest()}
    if checksums:
        write_json(place / "index.json", about | {"embeddings": part})
    else:
        (place / "index.json").write_text(json.dumps(about))


@pytest.mark.parametrize("checksums", [True, False])
def test_an_index_of_an_earlier_version_is_refused_with_what_to_type_and_replaced(
    command, runs_one, few, tmp_path, checksums
):
    place = tmp_path / "index"
    old_layout(place, runs_one, few[0], checksums)
    check_refused(runs_one, place, place / "index.json")
    with pytest.raises(DataError, match="an index of an earlier version") as caught:
        runs_one.gallery(place)
    assert command(*shlex.split(str(caught.value).partition("type: pml-ext ")[2])).returncode == 0
    assert check_whole(runs_one, place, few) == few[0]
    assert len(list(place.iterdir())) == 3


def rewrite(place, pattern, write):
    """Another content of a file, whose sums fit."""
    (path,) = place.glob(pattern)
    write(path)
    about = read_json(place / "index.json")
    key = {"*.npy": "embeddings", "*.arrow": "table"}[pattern]
    content = path.read_bytes()
    about[key] |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    write_json(place / "index.json", about)
    return path


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.zeros((20, 32), np.float32), r"embeddings of float32 \[20, 32\], wanted float32 \[N, 64\]"),
        (np.zeros((20, 64)), r"embeddings of float64 \[20, 64\], wanted float32"),
        (np.zeros((64,), np.float32), r"embeddings of float32 \[64\], wanted"),
        (np.zeros((2, 64), np.float32), "2 images, not the 20 of index"),
    ],
)
def test_embeddings_that_do_not_fit_are_refused(runs_one, few, tmp_path, array, text):
    runs_one.index(few[0], tmp_path)
    path = rewrite(tmp_path, "*.npy", lambda path: np.save(path, array))
    with pytest.raises(DataError, match=text):
        runs_one.gallery(tmp_path)
    check_refused(runs_one, tmp_path, path)


def test_a_table_of_other_columns_or_rows_is_refused(runs_one, few, tmp_path):
    pa = pytest.importorskip("pyarrow")
    runs_one.index(few[1], tmp_path / "other")
    (other,) = (tmp_path / "other").glob("*.arrow")
    place = runs_one.index(few[0], tmp_path / "index").place
    path = rewrite(place, "*.arrow", lambda path: path.write_bytes(other.read_bytes()))
    with pytest.raises(DataError, match="25 images, not the 20 of index"):
        runs_one.gallery(place)

    def write(path):
        batch = pa.record_batch([pa.array([1] * 20)], names=["path"])
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
            writer.write_batch(batch)

    rewrite(place, "*.arrow", write)
    with pytest.raises(DataError, match=r"no table of images \(ValueError: columns path\); type: pml-ext index"):
        runs_one.gallery(place)
    check_refused(runs_one, place, path)


def test_a_large_part_that_is_cut_or_of_another_index_is_noticed_and_a_byte_by_check(
    command, runs_one, few, tmp_path, monkeypatch
):
    """Large: not read whole when an index is opened."""
    monkeypatch.setattr("pml_ext.retrieval.parts.WHOLE", 100)
    place = runs_one.index(few[0], tmp_path / "index").place
    other = runs_one.index(few[0], tmp_path / "other", "exact").place
    (path,), (twin,) = place.glob("*.npy"), other.glob("*.npy")
    whole = path.read_bytes()
    for content, text in (
        (whole[:-4], "5,244 bytes, not the 5,248 that"),
        (whole[::-1], "not the file that index.json"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=text):
            runs_one.check_index(place)
        with pytest.raises(DataError, match=text):
            load_run(runs_one.folder, "cpu").gallery(place)
    monkeypatch.setattr("pml_ext.retrieval.parts._PIECE", 16)
    place = runs_one.index(few[0], tmp_path / "third").place
    (path,) = place.glob("*.npy")
    content = bytearray(path.read_bytes())
    content[200] ^= 1  # between two pieces
    path.write_bytes(content)
    assert twin.stat().st_size == path.stat().st_size
    assert len(load_run(runs_one.folder, "cpu").gallery(place).embedded.paths) == 20
    done = command("index", runs_one.folder, "-o", place, "--check")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{path}: not the file that index.json was written for; type: pml-ext index" in done.stderr


# What an index takes


@pytest.mark.parametrize(
    ("points", "text"),
    [
        (torch.full((2, 64), torch.nan), "a.png: its embedding has length nan; an index wants embeddings of length 1"),
        (torch.full((2, 64), 1.0), "its embedding has length 8"),
        (torch.ones(2, 8) / 8**0.5, r"shape \[2, 8\]; .* has a network of embeddings of size 64"),
        (torch.ones(3, 64) / 8, r"there are 2 paths and embeddings of shape \[3, 64\]"),
    ],
)
def test_embeddings_that_are_none_are_refused_when_an_index_is_written(runs_one, tmp_path, points, text):
    with pytest.raises(DataError, match=text):
        runs_one.write_index(Embedded(tmp_path, ["a.png", "b.png"], points, {}), tmp_path / "index")
    assert not (tmp_path / "index").exists()


def test_what_is_read_of_an_index_is_what_is_asked_for(runs_one, tmp_path, monkeypatch):
    """Of 20,000 names those of the answers; embeddings are no copy."""
    points = torch.nn.functional.normalize(torch.randn(20_000, 64, generator=torch.Generator().manual_seed(0)))
    paths = [f"class {number % 50}/{number:05d}.png" for number in range(len(points))]
    runs_one.write_index(Embedded(tmp_path, paths, points, {}), tmp_path / "index")
    read = []
    real = Paths.bytes_of
    monkeypatch.setattr(Paths, "bytes_of", lambda self, number: read.append(number) or real(self, number))
    run = load_run(runs_one.folder, "cpu")
    gallery = run.gallery(tmp_path / "index")
    assert run.gallery(tmp_path / "index") is gallery
    if Path("/proc/self/maps").exists():
        mapped = Path("/proc/self/maps").read_text()
        assert all(path.name in mapped for path in gallery.place.iterdir() if path.suffix in (".npy", ".arrow"))
    with pytest.warns(UserWarning, match=r"10 of 10 answers are gone since they were indexed, class \d+/\d+.png first"):
        (answer,) = run.query(torch.zeros(1, 1, 8, 8, dtype=torch.uint8), 10, gallery)
    assert len(answer.paths) == 10
    assert len(read) == 10
    assert gallery.embedded.paths.index(paths[12_345]) == 12_345
    assert len(read) < 10 + 20
    assert "nowhere.png" not in gallery.embedded.paths
    assert gallery.embedded.paths == paths
    assert gallery.embedded.classes[-1] == "class 49"


def test_an_index_that_was_replaced_is_read_again(runs_one, few, tmp_path):
    runs_one.index(few[0], tmp_path)
    assert len(runs_one.gallery(tmp_path).embedded.paths) == 20
    load_run(runs_one.folder, "cpu").index(few[1], tmp_path)
    assert len(runs_one.gallery(tmp_path).embedded.paths) == 25


# Whose index it is


def test_an_index_of_another_run_is_refused(runs, indexed, folder, tmp_path):
    other = load_run(runs[1], "cpu")
    with pytest.raises(DataError, match=r"index was built by the run .*one .*, not by .*other .*type: pml-ext index"):
        other.gallery(indexed[1].place)
    with pytest.raises(DataError, match=r"nowhere: no index; type: pml-ext index .*other FOLDER -o .*nowhere"):
        other.query(folder / indexed[1].embedded.paths[0], gallery=tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["../outside.png", "/etc/passwd", "0/../../outside.png", "", "a//b.png"])
def test_paths_of_an_index_stay_in_its_folder(runs_one, few, tmp_path, monkeypatch, name):
    """Nobody writes another one, and of one that was made by other means no such path is given."""
    embedded = runs_one.embed_folder(few[0])
    embedded = dataclasses.replace(embedded, paths=[name, *embedded.paths[1:]])
    with pytest.raises(DataError, match="is no path inside of"):
        runs_one.write_index(embedded, tmp_path / "index")
    monkeypatch.setattr("pml_ext.retrieval.index.is_inside", lambda _: True)
    runs_one.write_index(embedded, tmp_path / "index")
    with pytest.raises(DataError, match=r"is not in the folder that was indexed; type: pml-ext index"):
        runs_one.query(torch.zeros(1, 1, 8, 8, dtype=torch.uint8), 20, tmp_path / "index")


class Opens:
    """Opens a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_no_code_of_an_indexs_author_is_run(runs_one, few, tmp_path):
    """With right checksums too."""
    runs_one.index(few[0], tmp_path / "index")
    written = tmp_path / "written"
    array = np.array([Opens(written)] * 20, dtype=object)
    path = rewrite(tmp_path / "index", "*.npy", lambda path: np.save(path, array))
    check_refused(runs_one, tmp_path / "index", path)
    assert not written.exists()
