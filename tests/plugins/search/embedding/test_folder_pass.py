"""A pass over a folder: what interrupts it, what it cannot look at, and what it tells."""

import math
import os
import re
import shlex
import shutil
import warnings

import pytest
import torch
from filelock import FileLock
from PIL import Image

from pml_ext.errors import ConfigError
from pml_ext_search.collection.problems import StoreWarning
from pml_ext_search.embedding import folder_pass, reading
from pml_ext_search.embedding.embedding import SkippedImage

from ..conftest import execute, flip, full, halve, killed, of_index, rows
from ..drawings import write_some


def test_a_full_disk_keeps_what_was_written(make, images, command, runs, monkeypatch):
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


def test_a_killed_process_resumes_from_its_rows(make, images, monkeypatch):
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


def test_files_that_are_no_images_are_named_once(make, images):
    write_some(images, range(5))
    (images / "gone.png").symlink_to(images / "nowhere.png")
    (images / "elsewhere").symlink_to(images / "class 1")
    (images / "@eaDir").mkdir()
    for name in ("1.xmp", "2.xmp"):
        (images / name).touch()
    with pytest.raises(ConfigError, match="--workers -1: wanted 0 or more"):
        make(workers=-1).embed_folder(images)
    first = [
        f"skipped {images}/@eaDir: a recycle bin or another system folder",
        f"skipped {images}/elsewhere: a link to a folder, which is not followed",
        f"skipped {images}/gone.png: a link to what is not there",
        f"skipped 2 files, the first {images}/1.xmp: not named like an image",
    ]
    with pytest.warns(SkippedImage) as heard:
        embedded = make(workers=1).embed_folder(images)
    assert sorted(lines_of(heard)) == first
    assert (embedded.new, len(embedded.skipped)) == (5, 5)
    (images / "3.xmp").touch()
    with pytest.warns(SkippedImage) as heard:
        make().embed_folder(images)
    assert lines_of(heard) == [f"skipped {images}/3.xmp: not named like an image"]
    with warnings.catch_warnings(action="error"):
        again = make().embed_folder(images)
    assert (again.new, len(again.skipped)) == (0, 6)
    with pytest.warns(SkippedImage) as heard:
        make().index(images)
    assert len(lines_of(heard)) == 4


DAMAGED = ("cut.jpg", "cut.png", "empty.gif", "flipped.png", "floats.tiff", "text.webp")


def write_damaged(images):
    """Six files that are not readable images, each for a reason of its own."""
    pixels = Image.effect_noise((64, 64), 50)
    for name in ("cut.jpg", "cut.png", "flipped.png"):
        pixels.save(images / name)
    halve(images / "cut.jpg")
    halve(images / "cut.png")
    flip(images / "flipped.png", byte=20)  # in the header, which has a checksum
    (images / "empty.gif").touch()
    Image.new("F", (8, 8)).save(images / "floats.tiff")
    (images / "text.webp").write_text("no image")


def lines_of(heard):
    return [str(one.message) for one in heard if one.category is SkippedImage]


def counting(monkeypatch):
    """The names of the files that are read from now on."""
    read = []
    real = reading.read_image
    monkeypatch.setattr(
        reading, "read_image", lambda path, *more, **named: read.append(path.name) or real(path, *more, **named)
    )
    return read


def test_damaged_files_are_named_and_read_once(make, images, monkeypatch):
    write_some(images, range(5))
    write_damaged(images)
    with pytest.warns(SkippedImage) as heard:
        first = make().index(images).embedded
    assert len(lines_of(heard)) == 2  # one for each kind of reason
    read = counting(monkeypatch)
    for _ in range(2):
        with pytest.warns(SkippedImage) as heard:
            again = make().embed_folder(images)
        (line,) = lines_of(heard)
        assert line.startswith(f"6 damaged images of {images} skipped; to name them, type: pml-ext index ")
        assert (again.new, sorted(again.skipped), read) == (0, sorted(DAMAGED), [])
        assert again.paths == first.paths
        assert all(why.startswith(f"{images / name}: ") for name, why in again.skipped.items())
    with pytest.warns(SkippedImage) as heard:
        make().index(images)
    assert len(lines_of(heard)) == 2
    assert sorted(read) == sorted(DAMAGED)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_mended_file_is_read_again(make, images, monkeypatch, workers):
    write_some(images, range(5))
    write_damaged(images)
    with pytest.warns(SkippedImage):
        make(workers=workers).embed_folder(images)
    (images / "text.webp").write_bytes(next(images.glob("class 1/*")).read_bytes())
    (images / "empty.gif").unlink()
    with pytest.warns(SkippedImage, match="4 damaged images of .* skipped$"):  # no index has names of them
        embedded = make(workers=workers).embed_folder(images)
    assert (embedded.new, len(embedded.skipped)) == (1, 4)
    monkeypatch.setattr("PIL.__version__", "99.0")
    read = counting(monkeypatch)
    with pytest.warns(SkippedImage) as heard:
        make().embed_folder(images)
    assert (len(read), len(lines_of(heard))) == (4, 2)


def test_errors_that_may_pass_are_tried_again(make, images, monkeypatch):
    write_some(images, range(3))
    pixels = next(images.glob("class 1/*")).read_bytes()
    for name in ("locked.png", "large.png", "memory.png"):
        (images / name).write_bytes(pixels)
    Image.new("L", (300, 300)).save(images / "large.png")
    real = Image.open

    def opened(file, **options):
        if str(file).endswith("locked.png"):
            raise PermissionError(13, "Permission denied")
        if str(file).endswith("memory.png"):
            raise MemoryError
        return real(file, **options)

    monkeypatch.setattr(Image, "open", opened)
    monkeypatch.setenv("PML_EXT_MAX_PIXELS", "80000")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)
    with pytest.warns(SkippedImage):
        assert make().embed_folder(images).new == 3
    monkeypatch.undo()
    assert make().embed_folder(images).new == 3


def test_collections_without_the_damaged_table_are_read(make, images):
    write_some(images, range(5))
    (images / "broken.jpg").write_bytes(b"no image")
    for _ in range(2):
        with pytest.warns(SkippedImage, match="not a readable image"):
            make().embed_folder(images)
        execute(images, "DROP TABLE damaged")
    with pytest.warns(SkippedImage, match="not a readable image"):
        assert make().embed_folder(images).new == 0


def test_a_second_query_names_no_skipped_files(images, command, tmp_path, monkeypatch):
    pytest.importorskip("timm")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_some(images, range(8))
    write_damaged(images)
    (images / "@eaDir").mkdir()
    (images / "1.xmp").touch()
    first = command("query", images, next(images.glob("class 1/*")), "--json")
    assert first.returncode == 0, first.stderr
    assert first.stderr.count("not a readable image") >= 1
    again = command("query", images, next(images.glob("class 1/*")), "--json")
    assert again.returncode == 0, again.stderr
    assert again.stdout == first.stdout
    assert "@eaDir" in first.stderr
    assert "1.xmp" in first.stderr
    assert "@eaDir" not in again.stderr
    assert "1.xmp" not in again.stderr
    (line,) = [line for line in again.stderr.splitlines() if "damaged" in line or "readable" in line]
    checked = command(*shlex.split(line.partition("type: pml-ext ")[2]))
    assert checked.returncode == 0, checked.stderr
    assert checked.stdout.splitlines()[1] == f"6 damaged and not indexed: {', '.join(DAMAGED)}"


def test_a_second_pass_waits_with_a_warning(make, images, monkeypatch):
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


def test_progress_of_a_pass_is_reported(make, images, command, runs, monkeypatch):
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
