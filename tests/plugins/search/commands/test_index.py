"""``pml-ext index``: what is new, changed and gone, and ``--check``."""

import json
import os
import shutil

import pytest
import torch

from pml_ext_search.collection.problems import StoreWarning
from pml_ext_search.embedding.embedding import SkippedImage

from ..conftest import flip


def test_workers_that_the_index_starts_read_the_same(command, make, folder):
    made = make()
    done = command("index", made.folder, folder, "--workers", 2, "--store", folder.parent / "by workers")
    assert done.returncode == 0, done.stderr
    with pytest.warns(SkippedImage):
        one, other = (make(store, workers=0).embed_folder(folder) for store in ("store", folder.parent / "by workers"))
    assert (one.new, other.new) == (200, 0)
    torch.testing.assert_close(one.embeddings, other.embeddings, rtol=0, atol=1e-5)


def test_check_reads_what_opening_does_not(command, make, few, monkeypatch):
    run = make()
    place = run.index(few[0], "IVF2,Flat").place
    monkeypatch.setattr("pml_ext_search.collection.collection._MAX_HASHED_BYTES", 100)
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
