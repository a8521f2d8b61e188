"""The index of a collection: whole or refused, whatever becomes of its files and of who writes them."""

import dataclasses
import json
import os
import shlex
import shutil
from pathlib import Path

import pytest
import torch

from pml_ext import load_run
from pml_ext.errors import ConfigError, DataError
from pml_ext.retrieval import Embedded, Gallery
from pml_ext.retrieval.collection import Transaction

UNKNOWN = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)


class Killed(BaseException):
    """A process does not live to handle it."""


def kill_at(patch, step):
    """Let the disk do ``step`` things, and nothing from then on."""
    done = []

    def deadly(real):
        def call(*arguments, **options):
            if len(done) >= step:
                raise Killed
            done.append(real)
            return real(*arguments, **options)

        return call

    for place, name in ((os, "fsync"), (os, "replace"), (Path, "unlink"), (Transaction, "save")):
        patch.setattr(place, name, deadly(getattr(place, name)))


def check_whole(run, place, folders):
    """The index is that of one of the folders: paths, embeddings, and what faiss finds."""
    gallery = run.gallery(place)
    folder = gallery.folder
    assert folder in folders
    embedded, paths = gallery.embedded, [path.relative_to(folder).as_posix() for path in sorted(folder.glob("*/*.png"))]
    assert sorted(embedded.paths) == paths
    points = run.embed(folder)[[paths.index(path) for path in embedded.paths]]
    torch.testing.assert_close(embedded.embeddings, points, rtol=0, atol=1e-5)
    (answer,) = run.query(UNKNOWN, len(paths), gallery)
    distances = (points - run.embed(UNKNOWN)).norm(dim=1)
    assert answer.distances == pytest.approx(distances.sort().values.tolist(), abs=1e-3)
    found = [distances[embedded.paths.index(path)].item() for path in answer.paths]
    assert found == pytest.approx(answer.distances, abs=1e-3)
    return folder


@pytest.mark.parametrize("factory", ["", "IVF2,Flat"])
def test_a_kill_between_any_two_steps_leaves_the_old_index_or_the_new(runs_one, few, tmp_path, factory):
    run, seen = runs_one, []
    run.embed_folder(few[1])
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


@pytest.mark.parametrize("factory", ["", "IVF2,Flat"])
def test_a_full_disk_leaves_the_old_index_and_nothing_beside(runs_one, few, tmp_path, monkeypatch, factory):
    run, place = runs_one, tmp_path / "index"
    run.index(few[0], place, factory)
    before = sorted(place.iterdir())
    run.embed_folder(few[1])

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            run.index(few[1], place, factory)
    assert sorted(place.iterdir()) == before
    assert check_whole(run, place, few) == few[0]


def test_a_reader_that_is_overtaken_reads_the_new_index(runs_one, few, tmp_path, monkeypatch):
    """Between its search and its reading of paths."""
    gallery = runs_one.index(few[0], tmp_path / "index", "IVF2,Flat")
    other, real = load_run(runs_one.folder, "cpu"), Gallery.known

    def overtaken(self, names):
        monkeypatch.setattr(Gallery, "known", real)
        other.index(few[1], tmp_path / "index", "IVF2,Flat")
        return real(self, names)

    monkeypatch.setattr(Gallery, "known", overtaken)
    query = sorted(few[1].glob("*/*.png"))[-1]
    (answer,) = runs_one.query(query, 24, gallery)
    assert len({*answer.paths}) == 24
    assert gallery.folder == few[1].resolve()
    assert len(gallery) == 25
    assert check_whole(runs_one, tmp_path / "index", few) == few[1]


def one_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def halve(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    ("pattern", "damage"),
    [
        *((part, halve) for part in ("images.sqlite", "vectors.f32", "*.faiss")),
        *((part, lambda path: path.write_bytes(b"")) for part in ("images.sqlite", "vectors.f32", "*.faiss")),
        *((part, lambda path: path.write_bytes(b"\x80garbage\xff" * 50)) for part in ("images.sqlite", "*.faiss")),
        *((part, Path.unlink) for part in ("images.sqlite", "vectors.f32", "*.faiss")),
        ("*.faiss", one_byte),
    ],
)
def test_a_damaged_file_is_one_line_with_its_path_and_a_command_that_mends_it(
    command, runs_one, few, tmp_path, pattern, damage
):
    place = tmp_path / "an index"
    runs_one.index(few[0], place, "IVF2,Flat")
    (path,) = place.glob(pattern)
    damage(path)
    with pytest.raises(DataError) as caught:
        load_run(runs_one.folder, "cpu").gallery(place)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    line = shlex.split(text.partition("type: pml-ext ")[2])
    assert line[:2] == ["index", str(runs_one.folder)]
    assert line[line.index("--store") + 1] == str(place)
    done = command(*(str(few[0]) if word == "FOLDER" else word for word in line))
    assert done.returncode == 0
    assert check_whole(load_run(runs_one.folder, "cpu"), place, few) == few[0]


def test_check_reads_what_opening_does_not(command, runs_one, few, tmp_path, monkeypatch):
    place = runs_one.index(few[0], tmp_path / "index", "IVF2,Flat").place
    monkeypatch.setattr("pml_ext.retrieval.collection._HASHED", 100)
    for name in ("vectors.f32", "*.faiss"):
        (path,) = place.glob(name)
        whole = path.read_bytes()
        one_byte(path)
        assert len(load_run(runs_one.folder, "cpu").gallery(place)) == 20
        done = command("index", runs_one.folder, "--store", place, "--check")
        assert (done.returncode, done.stdout) == (2, "")
        assert "empty, cut or damaged" in done.stderr
        assert "type: pml-ext index" in done.stderr
        path.write_bytes(whole)
    assert command("index", runs_one.folder, "--store", place, "--check").returncode == 0


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


def test_a_query_reads_the_rows_of_its_answers_alone(runs_one, tmp_path, monkeypatch):
    points = torch.nn.functional.normalize(torch.randn(20_000, 64, generator=torch.Generator().manual_seed(0)))
    paths = [f"class {number % 50}/{number:05d}.png" for number in range(len(points))]
    runs_one.write_index(Embedded(tmp_path, paths, points, {}), tmp_path / "index")
    read, real = [], Transaction.images
    monkeypatch.setattr(
        Transaction, "images", lambda self, *where: (read.append(row) or row for row in real(self, *where))
    )
    run = load_run(runs_one.folder, "cpu")
    gallery = run.gallery(tmp_path / "index")
    assert run.gallery(tmp_path / "index") is gallery
    if Path("/proc/self/maps").exists():
        assert str(tmp_path / "index" / "vectors.f32") in Path("/proc/self/maps").read_text()
    with pytest.warns(
        UserWarning, match=r"the indexed folder|10 of 10 answers are gone since they were indexed, class"
    ):
        (answer,) = run.query(UNKNOWN, 10, gallery)
    assert len(answer.paths) == 10
    assert len(read) <= 11
    assert gallery.embedded.paths == paths
    assert gallery.embedded.classes[-1] == "class 49"
    assert len(gallery) == 20_000


def test_an_index_that_was_replaced_is_read_again(runs_one, few, tmp_path):
    runs_one.index(few[0], tmp_path)
    assert len(runs_one.gallery(tmp_path)) == 20
    load_run(runs_one.folder, "cpu").index(few[1], tmp_path)
    assert len(runs_one.gallery(tmp_path)) == 25
    assert check_whole(runs_one, tmp_path, few) == few[1]


def test_an_index_of_another_run_is_refused(runs, indexed, folder, tmp_path):
    other = load_run(runs[1], "cpu")
    with pytest.raises(
        DataError, match=r"collection was built by the run .*one .*, not by .*other .*type: pml-ext ind"
    ):
        other.gallery(indexed[1].place)
    with pytest.raises(DataError, match=r"nowhere: no index; type: pml-ext index .*other FOLDER --store .*nowhere"):
        other.query(folder / indexed[1].embedded.paths[0], gallery=tmp_path / "nowhere")
    own = load_run(runs[0], "cpu", store=tmp_path / "store")
    own.embed(sorted((folder / "0").iterdir()))
    with pytest.raises(DataError, match=r"no index; type: pml-ext index .*one FOLDER --store"):
        own.gallery()


@pytest.mark.parametrize("name", ["../outside.png", "/etc/passwd", "0/../../outside.png", "", "a//b.png"])
def test_paths_of_an_index_stay_in_its_folder(runs_one, few, tmp_path, monkeypatch, name):
    """None is written, and none is given of an index that was made by other means."""
    embedded = runs_one.embed_folder(few[0])
    embedded = dataclasses.replace(embedded, paths=[name, *embedded.paths[1:]])
    with pytest.raises(DataError, match="is no path inside of"):
        runs_one.write_index(embedded, tmp_path / "index")
    with monkeypatch.context() as patch:
        patch.setattr("pml_ext.retrieval.trained.is_inside", lambda _: True)
        runs_one.write_index(embedded, tmp_path / "index")
    with pytest.raises(DataError, match=r"is not in the folder that was indexed; type: pml-ext index"):
        runs_one.query(UNKNOWN, 20, tmp_path / "index")


def test_a_network_that_was_changed_is_not_indexed(runs, few, tmp_path):
    run = load_run(runs[0], "cpu", store=tmp_path / "store")
    with torch.no_grad():
        next(run.network.parameters()).add_(1)
    with pytest.raises(ConfigError, match="its network was changed since it was read"):
        run.index(few[0])
    run.embed_folder(few[0])
    assert not (tmp_path / "store").exists()


# Again


def ids(run, place):
    embedded = run.gallery(place).embedded
    return dict(zip(embedded.paths, embedded.ids.tolist(), strict=True))


def test_again_takes_up_what_is_new_changed_and_gone(command, runs_one, few, tmp_path):
    images = tmp_path / "images"
    shutil.copytree(few[1], images)
    odd = os.fsdecode(b"0/caf\xe9 $1.png")
    files = sorted(images.glob("*/*.png"))
    shutil.copy(files[0], images / odd)
    out = ("--store", tmp_path / "index")
    done = command("index", runs_one.folder, images, *out, "--json")
    told = json.loads(done.stdout)
    assert (told["images"], told["new"], told["as_before"]) == (26, 26, 0)
    before = ids(runs_one, tmp_path / "index")
    assert sorted(before.values()) == list(range(26))
    files[2].unlink()
    shutil.copy(files[4], files[3])
    for name in ("zero", "one"):
        shutil.copy(files[5], images / f"{name}.png")
    done = command("index", runs_one.folder, *out)
    assert done.stdout.splitlines()[1] == "2 new, 1 changed, 1 gone, 24 as before"
    after = ids(runs_one, tmp_path / "index")
    assert {path: after[path] for path in before if path in after} == {
        path: number for path, number in before.items() if path in after
    }
    assert {after["zero.png"], after["one.png"]} == {26, 27}
    runs_one.index(images, tmp_path / "scratch")
    again, scratch = (runs_one.gallery(tmp_path / name).embedded for name in ("index", "scratch"))
    assert sorted(again.paths) == sorted(scratch.paths)
    assert odd in again.paths
    rows = [again.paths.index(path) for path in scratch.paths]
    assert torch.equal(again.embeddings[rows], scratch.embeddings)
    (images / "zero.png").unlink()
    command("index", runs_one.folder, *out)
    shutil.copy(files[5], images / "zero.png")
    done = command("index", runs_one.folder, *out, "--json")
    told = json.loads(done.stdout)
    assert [told[key] for key in ("new", "changed", "gone", "as_before")] == [1, 0, 0, 26]
    assert ids(runs_one, tmp_path / "index")["zero.png"] == 28, "an id is never used again"


def test_without_a_folder_there_has_to_be_an_index(command, runs_one, tmp_path):
    done = command("index", runs_one.folder, "--store", tmp_path / "index")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "index: no index; type: pml-ext index" in done.stderr
    assert not (tmp_path / "index").exists()


def test_what_has_become_of_the_images_is_checked(command, runs_one, few, tmp_path):
    images = tmp_path / "images"
    shutil.copytree(few[0], images)
    where = ("--store", tmp_path / "index")
    runs_one.index(images, where[1])
    files = sorted(images.glob("*/*.png"))
    files[0].unlink()
    shutil.copy(files[1], files[2])
    done = command("index", runs_one.folder, *where, "--check", "--json")
    assert done.returncode == 1
    told = json.loads(done.stdout)
    assert (told["gone"], told["changed"]) == (["0/0000.png"], [files[2].relative_to(images).as_posix()])
    assert "1 images gone and 1 changed since they were indexed; type: pml-ext index" in done.stderr
    images.rename(tmp_path / "moved")
    query = tmp_path / "moved" / files[1].relative_to(images)
    done = command("query", runs_one.folder, query, "--store", where[1], "--json", "-k", 3)
    assert (done.returncode, len(json.loads(done.stdout)[0]["paths"])) == (0, 3)
    assert f"the indexed folder {images} is gone or moved" in done.stderr
