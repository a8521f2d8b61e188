"""An index that is built again: what it takes up, ids, and what has become of its images."""

import json
import os
import shutil

import torch


def test_again_takes_up_what_is_new_changed_and_gone(command, runs_one, few, tmp_path):
    images = tmp_path / "images"
    shutil.copytree(few[1], images)
    odd = os.fsdecode(b"0/caf\xe9 $1.png")
    files = sorted(images.glob("*/*.png"))
    shutil.copy(files[0], images / odd)
    out = ("-o", tmp_path / "index")
    done = command("index", runs_one.folder, images, *out, "--json")
    told = json.loads(done.stdout)
    assert (told["images"], told["new"], told["as_before"]) == (26, 26, 0)
    before = {path: int(number) for path, number in ids(runs_one, tmp_path / "index").items()}
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
    assert again.paths == scratch.paths
    assert odd in again.paths
    assert torch.equal(again.embeddings, scratch.embeddings)
    (images / "zero.png").unlink()
    command("index", runs_one.folder, *out)
    shutil.copy(files[5], images / "zero.png")
    done = command("index", runs_one.folder, *out, "--json")
    told = json.loads(done.stdout)
    assert [told[key] for key in ("new", "changed", "gone", "as_before")] == [1, 0, 0, 26]
    assert ids(runs_one, tmp_path / "index")["zero.png"] == 28, "an id is never used again"


def ids(run, place):
    embedded = run.gallery(place).embedded
    return dict(zip(embedded.paths, embedded.ids.tolist(), strict=True))


def test_without_a_folder_there_has_to_be_an_index(command, runs_one, tmp_path):
    done = command("index", runs_one.folder, "-o", tmp_path / "index")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "index: no index; type: pml-ext index" in done.stderr


def test_what_has_become_of_the_images_is_checked(command, runs_one, few, tmp_path):
    images = tmp_path / "images"
    shutil.copytree(few[0], images)
    where = ("-o", tmp_path / "index")
    runs_one.index(images, where[1])
    assert command("index", runs_one.folder, *where, "--check").returncode == 0
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
    done = command("query", runs_one.folder, query, "--gallery", where[1], "--json", "-k", 3)
    assert (done.returncode, len(json.loads(done.stdout)[0]["paths"])) == (0, 3)
    assert f"the indexed folder {images} is gone or moved" in done.stderr
