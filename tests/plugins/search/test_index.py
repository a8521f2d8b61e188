"""The index of a collection: whole or refused, whatever becomes of its files and of who writes them."""

import contextlib
import json
import os
import shlex
import shutil
import sqlite3
import warnings
from pathlib import Path

import pytest
import torch

from pml_ext.errors import DataError
from pml_ext_search.embedding import SEVERAL
from pml_ext_search.problems import StoreWarning
from pml_ext_search.trained import TrainedRun
from pml_ext_search.transaction import Transaction

from .conftest import empty, flip, garbage, halve, made_up

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


def check_whole(run, folders):
    """The index is that of one of the folders: paths, embeddings, and what faiss finds."""
    gallery = run.gallery()
    folder = gallery.folder
    assert folder in folders
    embedded = gallery.embedded
    paths = [path.relative_to(folder).as_posix() for path in sorted(folder.glob("*/*.png"))]
    assert sorted(embedded.paths) == paths
    points = run.embed([folder / path for path in embedded.paths])
    torch.testing.assert_close(embedded.embeddings, points, rtol=0, atol=1e-5)
    (answer,) = run.query(UNKNOWN, len(paths))
    distances = (points - run.embed(UNKNOWN)).norm(dim=1)
    assert answer.distances == pytest.approx(distances.sort().values.tolist(), abs=1e-3)
    found = [distances[embedded.paths.index(path)].item() for path in answer.paths]
    assert found == pytest.approx(answer.distances, abs=1e-3)
    return folder


@pytest.mark.parametrize("factory", ["", "IVF2,Flat"])
def test_a_kill_leaves_the_old_index_or_the_new(make, few, tmp_path, factory):
    seen = []
    make("old").index(few[0], factory)
    for step in range(40):
        shutil.copytree(tmp_path / "old", tmp_path / str(step))
        try:
            with pytest.MonkeyPatch.context() as patch:
                kill_at(patch, step)
                make(str(step)).index(few[1], factory)
            break
        except Killed:
            seen.append(check_whole(make(str(step)), few))
            make(str(step)).index(few[1], factory)
            assert check_whole(make(str(step)), few) == few[1]
            names = {path.name for path in (tmp_path / str(step)).iterdir()} - {".lock"}
            assert len(names) == (3 if factory else 2), f"left-overs: {names}"
    assert len(seen) >= 3
    assert seen == sorted(seen, reverse=True), "the new index stands from some step on"  # "old" > "new"
    assert set(seen) == ({*few} if factory else {few[0]})


def test_a_reader_that_is_overtaken_reads_the_new_index(make, few, monkeypatch):
    """Between the embedding of its query and the search."""
    run = make()
    gallery = run.index(few[0], "IVF2,Flat")
    real = TrainedRun.embed

    def overtaken(self, images):
        monkeypatch.setattr(TrainedRun, "embed", real)
        make().index(few[1], "IVF2,Flat")
        return real(self, images)

    monkeypatch.setattr(TrainedRun, "embed", overtaken)
    queries = sorted(few[1].glob("*/*.png"))[-SEVERAL:]  # fewer are embedded in the transaction that searches
    *_, answer = run.query(queries, 24)
    assert len({*answer.paths}) == 24
    assert gallery.folder == few[1].resolve()
    assert len(gallery) == 25
    assert check_whole(run, few) == few[1]


@pytest.mark.parametrize(
    ("pattern", "damage", "lost"),
    [
        *(("images.sqlite", damage, 20) for damage in (halve, empty, Path.unlink, garbage)),
        *(("vectors.f32", damage, lost) for damage, lost in ((halve, 10), (empty, 20), (Path.unlink, 20))),
        *(("*.faiss", damage, 0) for damage in (halve, empty, Path.unlink, garbage, flip)),
    ],
)
def test_a_damaged_file_is_one_line_with_its_remedy(command, make, few, tmp_path, pattern, damage, lost):
    """A query changes nothing of it; who embeds the folder computes the lost embeddings again, with a word."""
    run = make("an index")
    place = tmp_path / "an index"
    before = run.index(few[0], "IVF2,Flat").embedded.embeddings.clone()
    (path,) = place.glob(pattern)
    damage(path)
    files = {path.name: path.read_bytes() for path in place.iterdir()}
    with pytest.raises(DataError) as caught:
        make("an index").gallery()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreWarning)
        make("an index").embed(next(few[0].glob("*/*.png")))
    assert {path.name: path.read_bytes() for path in place.iterdir()} == files
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    line = shlex.split(text.partition("type: pml-ext ")[2])
    assert line[:2] == ["index", str(run.folder)]
    assert line[line.index("--store") + 1] == str(place)
    shutil.copytree(place, tmp_path / "copy")
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        again = make("copy").embed_folder(few[0])
    told = [str(warning.message) for warning in heard]
    assert (again.new, len(told)) == (lost, bool(lost))
    assert all(text.startswith(f"{tmp_path / 'copy'}: ") and "damaged" in text and "\n" not in text for text in told)
    torch.testing.assert_close(again.embeddings, before, rtol=0, atol=1e-5)
    done = command(*(str(few[0]) if word == "FOLDER" else word for word in line))
    assert done.returncode == 0, done.stderr
    assert check_whole(make("an index"), few) == few[0]


def test_check_reads_what_opening_does_not(command, make, few, monkeypatch):
    run = make()
    place = run.index(few[0], "IVF2,Flat").place
    monkeypatch.setattr("pml_ext_search.collection._MAX_HASHED_BYTES", 100)
    for name in ("*.faiss", "vectors.f32"):
        (path,) = place.glob(name)
        whole = path.read_bytes()
        flip(path)
        assert len(make().gallery()) == 20
        done = command("index", run.folder, "--store", place, "--check")
        assert (done.returncode, done.stdout) == (2, "")
        assert "empty, cut or damaged" in done.stderr
        assert "type: pml-ext index" in done.stderr
        path.write_bytes(whole)
    assert command("index", run.folder, "--store", place, "--check").returncode == 0
    flip(path)
    with pytest.warns(StoreWarning, match="embeddings of 1 image were damaged; embedded again"):
        assert make().embed_folder(few[0]).new == 1


@pytest.mark.parametrize("vector", [99, "one"])
def test_a_row_without_a_vector_is_damage(make, few, tmp_path, vector):
    images = shutil.copytree(few[0], tmp_path / "images")
    make().index(images)
    sorted(images.glob("*/*.png"))[5].unlink()
    make().index(images)  # whose vectors do not lie one after another
    with contextlib.closing(sqlite3.connect(tmp_path / "store" / "images.sqlite")) as database, database:
        database.execute("UPDATE images SET vector = ? WHERE id = 3", (vector,))
    with pytest.raises(DataError, match=r"images.sqlite: empty, cut or damaged \(a row of the index has no vector\)"):
        make().gallery()


def test_a_query_reads_the_rows_of_its_answers_alone(make, tmp_path, monkeypatch):
    points = torch.nn.functional.normalize(torch.randn(20_000, 64, generator=torch.Generator().manual_seed(0)))
    paths = [f"class {number % 50}/{number:05d}.png" for number in range(len(points))]
    made_up(make(), points, paths=paths)
    read = []
    real = Transaction.images
    monkeypatch.setattr(
        Transaction, "images", lambda self, *where: (read.append(row) or row for row in real(self, *where))
    )
    run = make()
    gallery = run.gallery()
    assert run.gallery() is gallery
    if Path("/proc/self/maps").exists():
        assert str(tmp_path / "store" / "vectors.f32") in Path("/proc/self/maps").read_text()
    with pytest.warns(UserWarning, match=r"the indexed folder /photos is gone or moved; type: pml-ext index"):
        (answer,) = run.query(UNKNOWN, 10)
    assert len(answer.paths) == 10
    assert len(read) <= 11
    assert gallery.embedded.paths == paths
    assert gallery.embedded.classes[-1] == "class 49"
    assert len(gallery) == 20_000


def test_a_missing_index_names_the_command(make, folder):
    own = make()
    for _ in range(2):
        with pytest.raises(DataError, match=r"store: no index; type: pml-ext index .*one FOLDER --store .*store"):
            own.gallery()
        own.embed(sorted((folder / "0").iterdir()))  # a collection, without an index


@pytest.mark.parametrize("name", ["../outside.png", "/etc/passwd", "0/../../outside.png", "", "a//b.png"])
def test_paths_of_an_index_stay_in_its_folder(make, name):
    """None is given of an index that was made by other means."""
    run = make()
    made_up(run, torch.eye(64), paths=[name, *(f"{number}.png" for number in range(63))])
    with pytest.raises(DataError, match=r"is not in the folder that was indexed\); type: pml-ext index"):
        run.query(UNKNOWN, 64)


# Again


def ids(run):
    embedded = run.gallery().embedded
    return dict(zip(embedded.paths, embedded.ids.tolist(), strict=True))


def test_indexing_again_finds_new_changed_and_gone_images(command, make, few, tmp_path):
    run = make("index")
    images = tmp_path / "images"
    shutil.copytree(few[1], images)
    odd = os.fsdecode(b"0/caf\xe9 $1.png")
    files = sorted(images.glob("*/*.png"))
    shutil.copy(files[0], images / odd)
    out = ("--store", tmp_path / "index")
    done = command("index", run.folder, images, *out, "--json")
    told = json.loads(done.stdout)
    assert (told["images"], told["new"], told["as_before"]) == (26, 26, 0)
    before = ids(run)
    assert sorted(before.values()) == list(range(26))
    files[2].unlink()
    shutil.copy(files[4], files[3])
    for name in ("zero", "one"):
        shutil.copy(files[5], images / f"{name}.png")
    done = command("index", run.folder, *out)
    assert done.stdout.splitlines()[1] == "2 new, 1 changed, 1 gone, 24 as before"
    after = ids(run)
    assert {path: after[path] for path in before if path in after} == {
        path: number for path, number in before.items() if path in after
    }
    assert {after["zero.png"], after["one.png"]} == {26, 27}
    make("scratch").index(images)
    again, scratch = (make(name).gallery().embedded for name in ("index", "scratch"))
    assert sorted(again.paths) == sorted(scratch.paths)
    assert odd in again.paths
    rows = [again.paths.index(path) for path in scratch.paths]
    torch.testing.assert_close(again.embeddings[rows], scratch.embeddings, rtol=0, atol=1e-5)
    stats = [(images / path).stat() for path in again.paths]
    assert [[about.st_size, about.st_mtime_ns] for about in stats] == again.stats.tolist()
    assert make("index").embed_folder(images).new == 0
    (images / "zero.png").unlink()
    command("index", run.folder, *out)
    shutil.copy(files[5], images / "zero.png")
    done = command("index", run.folder, *out, "--json")
    told = json.loads(done.stdout)
    assert [told[key] for key in ("new", "changed", "gone", "as_before")] == [1, 0, 0, 26]
    assert ids(run)["zero.png"] == 28, "an id is never used again"


def test_check_names_gone_and_changed_images(command, make, few, tmp_path):
    run = make("index")
    images = tmp_path / "images"
    shutil.copytree(few[0], images)
    where = ("--store", tmp_path / "index")
    run.index(images)
    files = sorted(images.glob("*/*.png"))
    files[0].unlink()
    shutil.copy(files[1], files[2])
    done = command("index", run.folder, *where, "--check", "--json")
    assert done.returncode == 1
    told = json.loads(done.stdout)
    assert (told["gone"], told["changed"]) == (["0/0000.png"], [files[2].relative_to(images).as_posix()])
    assert "1 images gone and 1 changed since they were indexed; type: pml-ext index" in done.stderr
    images.rename(tmp_path / "moved")
    query = tmp_path / "moved" / files[1].relative_to(images)
    done = command("query", run.folder, query, "--store", where[1], "--json", "-k", 3)
    assert (done.returncode, len(json.loads(done.stdout)[0]["paths"])) == (0, 3)
    assert f"the indexed folder {images} is gone or moved" in done.stderr
