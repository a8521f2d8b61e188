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
from pml_ext.retrieval import TrainedRun
from pml_ext.retrieval.index import write_index

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

    for place, name in ((os, "fsync"), (os, "replace"), (Path, "unlink"), (np, "savez")):
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
            assert len(list(place.iterdir())) == (3 if factory else 2), "left-overs"
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
    for name in (".embeddings.npz.123.tmp", ".index.faiss.7.tmp", ".index.json.7.tmp",
                 "embeddings-0123456789abcdef.npz", "faiss-0123456789abcdef.faiss"):  # fmt: skip
        (tmp_path / name).write_bytes(b"left over")
    mine = {"embeddings.npz", "notes.txt", "embeddings-of-mine.npz"}
    for name in mine:
        (tmp_path / name).write_bytes(b"mine")
    run_files = runs_one.index(few[0], tmp_path)
    assert {path.name for path in tmp_path.iterdir()} > mine
    assert len(list(tmp_path.iterdir())) == len(mine) + 2
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
        *((part, damage) for part in ("index.json", "*.npz", "*.faiss") for damage in (empty, cut, garbage)),
        *((part, damage) for part in ("*.npz", "*.faiss") for damage in (one_byte, Path.unlink)),
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
    empty(next(place.glob("*.npz")))
    image = next(few[0].glob("*/*.png"))
    done = command("query", runs[0], image, "--gallery", place, "--picture", tmp_path / "q.png")
    assert (done.returncode, done.stdout) == (2, "")
    line = shlex.split(done.stderr.partition("type: pml-ext ")[2])
    assert line == ["index", str(runs[0]), str(few[0]), "-o", str(place), "--index", "IVF2,Flat"]
    assert command(*line).returncode == 0
    assert command("query", runs[0], image, "--gallery", place, "--picture", tmp_path / "q.png").returncode == 0


# Indexes as earlier versions wrote them, without checksums


def write_old(place: Path, run: TrainedRun, folder: Path, factory: str = "", **arrays: np.ndarray) -> None:
    embedded = run.embed_folder(folder)
    points = embedded.embeddings.numpy()
    place.mkdir(exist_ok=True)
    if factory:
        faiss = pytest.importorskip("faiss")
        index = faiss.index_factory(points.shape[1], factory)
        index.train(points)
        index.add(points)
        faiss.write_index(index, str(place / "index.faiss"))
    saved = {"embeddings": points, "paths": np.array(embedded.paths), "classes": np.array(embedded.classes)}
    np.savez(place / "embeddings.npz", **saved | arrays)
    about = {"run": str(run.folder), "identity": run.identity, "folder": str(folder.resolve()), "factory": factory,
             "images": len(embedded.paths), "skipped": {}}  # fmt: skip
    (place / "index.json").write_text(json.dumps(about))


@pytest.mark.parametrize("factory", FACTORIES)
def test_an_index_of_an_earlier_version_is_read_and_replaced(runs_one, few, tmp_path, factory):
    write_old(tmp_path, runs_one, few[0], factory)
    assert check_whole(runs_one, tmp_path, few) == few[0]
    runs_one.index(few[1], tmp_path, factory)
    assert check_whole(runs_one, tmp_path, few) == few[1]
    assert not {"embeddings.npz", "index.faiss"} & {path.name for path in tmp_path.iterdir()}


def test_an_index_of_an_earlier_version_gets_an_effort(runs_one, few, tmp_path):
    write_old(tmp_path, runs_one, few[1], "IVF8,Flat")
    assert runs_one.gallery(tmp_path).faiss.recall >= 0.95


@pytest.mark.parametrize("part", ["embeddings.npz", "index.faiss"])
def test_parts_of_two_old_indexes_are_refused(runs_one, few, tmp_path, part):
    """As a kill in the middle left it: a part is newer than what describes it."""
    write_old(tmp_path, runs_one, few[0], "IVF2,Flat")
    for path in tmp_path.iterdir():
        os.utime(path, (1e9, 1e9 + 60 * (path.name == part)))
    check_refused(runs_one, tmp_path, tmp_path / part)


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"paths": np.array(["a.png", "b.png"])}, r"20 embeddings do not fit its paths"),
        ({"paths": np.arange(20)}, r"do not fit its paths"),
        ({"embeddings": np.full((20, 64), np.nan, np.float32)}, "NaN or infinity"),
        ({"embeddings": np.full((20, 64), np.inf, np.float32)}, "NaN or infinity"),
        ({"embeddings": np.zeros((20, 32), np.float32)}, r"embeddings of float32 \[20, 32\], wanted float32 \[N, 64\]"),
        ({"embeddings": np.zeros((20, 64))}, r"embeddings of float64 \[20, 64\], wanted float32"),
        ({"embeddings": np.zeros((64,), np.float32)}, r"embeddings of float32 \[64\], wanted"),
        ({"embeddings": np.array([{}] * 20)}, "empty, cut or no embeddings"),
        ({"embeddings": np.zeros((2, 64), np.float32), "paths": np.array(["a", "b"])}, "2 images, not the 20 of index"),
    ],
)
def test_embeddings_that_do_not_fit_are_refused(runs_one, few, tmp_path, arrays, text):
    write_old(tmp_path, runs_one, few[0], **arrays)
    with pytest.raises(DataError, match=text):
        runs_one.gallery(tmp_path)
    check_refused(runs_one, tmp_path, tmp_path / "embeddings.npz")


def test_an_old_faiss_index_of_other_images_is_refused(runs_one, few, tmp_path):
    write_old(tmp_path / "new", runs_one, few[1], "IVF2,Flat")
    write_old(tmp_path, runs_one, few[0], "IVF2,Flat")
    (tmp_path / "index.faiss").write_bytes((tmp_path / "new" / "index.faiss").read_bytes())
    with pytest.raises(DataError, match="25 points of size 64, not 20 of 64, as the embeddings; type: pml-ext index"):
        runs_one.gallery(tmp_path)


# Whose index it is


def test_an_index_of_another_run_is_refused(runs, indexed, folder, tmp_path):
    other = load_run(runs[1], "cpu")
    with pytest.raises(DataError, match=r"index was built by the run .*one .*, not by .*other .*type: pml-ext index"):
        other.gallery(indexed[1].place)
    with pytest.raises(DataError, match=r"nowhere: no index; type: pml-ext index .*other FOLDER -o .*nowhere"):
        other.query(folder / indexed[1].embedded.paths[0], gallery=tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["../outside.png", "/etc/passwd", "0/../../outside.png", "", "a//b.png"])
def test_paths_of_an_index_stay_in_its_folder(runs_one, few, tmp_path, name):
    gallery = runs_one.index(few[0], tmp_path / "index")
    embedded = dataclasses.replace(gallery.embedded, paths=[name, *gallery.embedded.paths[1:]])
    write_index(tmp_path / "index", runs_one._owner, embedded, None)
    with pytest.raises(DataError, match=r"is not in the folder that was indexed; type: pml-ext index"):
        runs_one.gallery(tmp_path / "index")


class Opens:
    """Opens a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("array", ["embeddings", "paths"])
def test_no_code_of_an_indexs_author_is_run(runs_one, few, tmp_path, array):
    """With right checksums too."""
    runs_one.index(few[0], tmp_path / "index")
    (path,), written = (tmp_path / "index").glob("*.npz"), tmp_path / "written"
    with np.load(path) as saved:
        arrays = dict(saved)
    np.savez(path, **arrays | {array: np.array([Opens(written)] * 20, dtype=object)})
    about = read_json(tmp_path / "index" / "index.json")
    about["embeddings"]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    write_json(tmp_path / "index" / "index.json", about)
    check_refused(runs_one, tmp_path / "index", path)
    assert not written.exists()
