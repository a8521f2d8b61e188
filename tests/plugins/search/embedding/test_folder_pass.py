"""A pass over a folder: what interrupts it, what it cannot look at, and what it tells."""

import math
import os
import re
import shutil
import warnings

import pytest
import torch
from filelock import FileLock

from pml_ext.errors import ConfigError
from pml_ext_search.collection.problems import StoreWarning
from pml_ext_search.embedding import folder_pass
from pml_ext_search.embedding.embedding import SkippedImage

from ..conftest import full, killed, of_index, rows
from ..drawings import write_some


def test_a_full_disk_is_one_line_and_what_was_written_stays(make, images, command, runs, monkeypatch):
    monkeypatch.setattr(folder_pass, "WRITTEN", 64)
    write_some(images, range(300))
    real = os.fsync
    written = []

    def full_later(file):
        if len(written) == 2:
            full()
        written.append(file)
        return real(file)

    monkeypatch.setattr(os, "fsync", full_later)
    done = command("index", runs[0], images, "--store", images.parent / "store")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "cannot be written (No space left on device); what was written before stays" in done.stderr
    monkeypatch.setattr(os, "fsync", real)
    assert rows(images) == 128
    with warnings.catch_warnings(action="error"):
        assert make().embed_folder(images).new == 300 - 128


def test_a_killed_process_goes_on_from_its_last_rows(make, images, monkeypatch):
    """Killed with its workers at work; benchmarks/embedding_kills.py kills the command three times."""
    write_some(images, range(100))
    monkeypatch.setattr(folder_pass, "WRITTEN", 20)
    monkeypatch.setattr(folder_pass, "SECONDS", math.inf)
    killed(lambda: make(workers=2).embed_folder(images, batch_size=10), 3)
    kept = rows(images)
    vectors = images.parent / "store" / "vectors.f32"
    assert kept % 20 == 0
    assert 0 < kept < 100
    assert vectors.stat().st_size == (kept + 20) * 64 * 4
    with vectors.open("ab") as file:
        file.write(b"part of a vector")
    with warnings.catch_warnings(action="error"):
        embedded = make().embed_folder(images)
    assert embedded.new == 100 - kept
    assert vectors.stat().st_size == 100 * 64 * 4
    shutil.rmtree(images.parent / "store")
    torch.testing.assert_close(embedded.embeddings, make().embed_folder(images).embeddings, rtol=0, atol=1e-5)


@pytest.mark.parametrize("inner", ["class 1", "class 1/inner"])
def test_images_that_cannot_be_looked_at_keep_ids(make, images, monkeypatch, inner):
    write_some(images, range(30))
    (images / "class 1" / "inner").mkdir()
    shutil.copy(next(images.glob("class 2/*")), images / "class 1" / "inner" / "more.png")
    run = make()
    run.index(images, factory="IVF4,Flat")
    before = dict(zip(*of_index(run), strict=True))
    real = os.scandir

    def scandir(place):
        if str(place) == str(images / inner):
            raise PermissionError(13, "Permission denied", str(place))
        return real(place)

    monkeypatch.setattr("os.scandir", scandir)
    for factory in ("IVF4,Flat", ""):
        with pytest.warns(SkippedImage, match=f"{inner}: cannot be read"):
            gallery = run.index(images, factory=factory)
        assert dict(zip(*of_index(run), strict=True)) == before
        assert gallery.changes == (0, 0, 0, 31)
        assert len(run.query(next(images.glob("class 2/*")), 30)[0].paths) == 30
    monkeypatch.undo()
    assert run.index(images).changes == (0, 0, 0, 31)
    assert dict(zip(*of_index(run), strict=True)) == before
    assert make().embed_folder(images).new == 0


def test_unreadable_files_are_named_until_they_are_mended(make, images):
    write_some(images, range(5))
    broken = images / "class 0" / "broken.jpg"
    broken.write_bytes(b"no image")
    (images / "gone.png").symlink_to(images / "nowhere.png")
    (images / "elsewhere").symlink_to(images / "class 1")
    with pytest.raises(ConfigError, match="--workers -1: wanted 0 or more"):
        make(workers=-1).embed_folder(images)
    for new in (5, 0):
        with pytest.warns(SkippedImage) as heard:
            embedded = make(workers=1).embed_folder(images)
        assert (embedded.new, sorted(embedded.skipped)) == (new, ["class 0/broken.jpg", "elsewhere", "gone.png"])
        told = sorted(str(one.message).partition(": ")[2][:39] for one in heard if one.category is SkippedImage)
        assert told == [
            "a link to a folder, which is not follow",
            "a link to what is not there",
            "not a readable image (UnidentifiedImage",
        ]
    broken.write_bytes((images / "class 0" / "0000.png").read_bytes())
    assert make().embed_folder(images).new == 1


def test_a_second_pass_over_a_folder_waits_with_a_word(make, images, monkeypatch):
    write_some(images, range(5))
    (images.parent / "store").mkdir()
    first = FileLock(images.parent / "store" / ".lock")
    first.acquire()
    real = warnings.warn

    def told(text, *rest, **more):
        if "waiting" in str(text):
            first.release()  # it is done
        real(text, *rest, **more)

    run = make()
    monkeypatch.setattr("warnings.warn", told)
    with pytest.warns(StoreWarning, match="another process embeds images into"):
        embedded = run.embed_folder(images)
    assert embedded.new == 5


def test_progress_is_reported(make, images, command, runs, monkeypatch):
    write_some(images, range(130))
    told = []
    make(listener=told.append).embed_folder(images)
    assert [(now.done, now.images) for now in told] == [(64, 130), (128, 130), (130, 130)]
    assert all(now.rate > 0 for now in told)
    assert told[-1].seconds_left == 0
    monkeypatch.setattr("pml_ext_train.cli.output.SECONDS", 0.0)
    shutil.rmtree(images.parent / "store")
    done = command("embed", runs[0], images, "-o", images.parent / "all.npz", "--store", images.parent / "store")
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert len(lines) == 3
    assert re.fullmatch(r"embedded 128 of 130 images: \d+ images/s, \d:\d\d:\d\d left", lines[1])
