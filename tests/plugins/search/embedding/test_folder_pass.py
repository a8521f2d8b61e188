"""A pass over a folder: what interrupts it, what it cannot read, what it reports; parts of other processes."""

import math
import os
import re
import shlex
import shutil
import warnings

import numpy as np
import pytest
import torch
from filelock import FileLock
from PIL import Image

from pml_ext.errors import ConfigError
from pml_ext_search.collection.problems import StoreWarning
from pml_ext_search.embedding import folder_pass, reading
from pml_ext_search.embedding.embedding import SkippedImage

from ..conftest import execute, flip, full, halve, ids_of, killed, rows
from ..drawings import write_some

pytestmark = pytest.mark.filterwarnings("ignore::pml_ext_search.SkippedImage")
DAMAGED = ("cut.jpg", "cut.png", "empty.gif", "flipped.png", "floats.tiff", "text.webp")


def test_a_full_disk_keeps_what_was_written(make, images, command, runs, monkeypatch):
    monkeypatch.setattr(folder_pass, "WRITTEN", 64)
    write_some(images, range(300))
    real = os.fsync
    written = []

    def full_later(file):
        written.append(file)
        return full() if len(written) > 2 else real(file)

    monkeypatch.setattr(os, "fsync", full_later)
    done = command("index", runs[0], images, "--store", images.parent / "store")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "cannot be written (No space left on device); what was written before stays" in done.stderr
    monkeypatch.setattr(os, "fsync", real)
    assert rows(images) == 128
    with warnings.catch_warnings(action="error"):
        assert make().embed_folder(images).new == 300 - 128


@pytest.mark.nightly
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
    before = ids_of(run)
    real = os.scandir

    def scandir(place):
        if str(place) == str(images / inner):
            raise PermissionError(13, "Permission denied", str(place))
        return real(place)

    monkeypatch.setattr("os.scandir", scandir)
    for factory in ("IVF4,Flat", ""):
        with pytest.warns(SkippedImage, match=f"{inner}: cannot be read"):
            gallery = run.index(images, factory=factory)
        assert ids_of(run) == before
        assert gallery.changes == (0, 0, 0, 31)
        assert len(run.query(next(images.glob("class 2/*")), 30)[0].paths) == 30
    monkeypatch.undo()
    assert run.index(images).changes == (0, 0, 0, 31)
    assert ids_of(run) == before
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
    embedded, lines = skipping(make(workers=1).embed_folder, images)
    assert sorted(lines) == first
    assert (embedded.new, len(embedded.skipped)) == (5, 5)
    (images / "3.xmp").touch()
    _, lines = skipping(make().embed_folder, images)
    assert lines == [f"skipped {images}/3.xmp: not named like an image"]
    with warnings.catch_warnings(action="error"):
        again = make().embed_folder(images)
    assert (again.new, len(again.skipped)) == (0, 6)
    assert len(skipping(make().index, images)[1]) == 4


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


def skipping(call, *arguments):
    """What a call returns, and its warnings of skipped files."""
    with pytest.warns(SkippedImage) as heard:
        found = call(*arguments)
    return found, [str(one.message) for one in heard if one.category is SkippedImage]


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
    first, lines = skipping(make().index, images)
    assert len(lines) == 2  # one for each kind of reason
    read = counting(monkeypatch)
    for _ in range(2):
        again, (line,) = skipping(make().embed_folder, images)
        assert line.startswith(f"6 damaged images of {images} skipped; to name them, type: pml-ext index ")
        assert (again.new, sorted(again.skipped), read) == (0, sorted(DAMAGED), [])
        assert again.paths == first.embedded.paths
        assert all(why.startswith(f"{images / name}: ") for name, why in again.skipped.items())
    assert len(skipping(make().index, images)[1]) == 2
    assert sorted(read) == sorted(DAMAGED)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_mended_file_is_read_again(make, images, monkeypatch, workers):
    write_some(images, range(5))
    write_damaged(images)
    make(workers=workers).embed_folder(images)
    (images / "text.webp").write_bytes(next(images.glob("class 1/*")).read_bytes())
    (images / "empty.gif").unlink()
    with pytest.warns(SkippedImage, match="4 damaged images of .* skipped$"):  # no index has names of them
        embedded = make(workers=workers).embed_folder(images)
    assert (embedded.new, len(embedded.skipped)) == (1, 4)
    monkeypatch.setattr("PIL.__version__", "99.0")
    read = counting(monkeypatch)
    assert len(skipping(make().embed_folder, images)[1]) == 2
    assert len(read) == 4


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
    first, again = (command("query", images, next(images.glob("class 1/*")), "--json") for _ in range(2))
    assert first.returncode == 0, first.stderr
    assert again.stdout == first.stdout
    for text in ("not a readable image", "@eaDir", "1.xmp"):
        assert text in first.stderr
        assert text not in again.stderr
    (line,) = [line for line in again.stderr.splitlines() if "damaged" in line]
    checked = command(*shlex.split(line.partition("type: pml-ext ")[2]))
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
        assert run.embed_folder(images).new == 5


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
    _, line, _ = done.stderr.splitlines()
    assert re.fullmatch(r"embedded 128 of 130 images: \d+ images/s, \d:\d\d:\d\d left", line)


def test_index_takes_parts_up_without_embedding(make, folder, whole, monkeypatch, json_of, runs, tmp_path):
    run = make("from parts")
    monkeypatch.setattr(run.images.computed, "forward", None)
    assert len(run.write_index(whole)) == 200
    assert run.write_index(whole).changes == (0, 0, 0, 200)
    monkeypatch.undo()
    own = make("own").index(folder)
    assert np.array_equal(own.embedded.embeddings.numpy(), run.gallery().embedded.embeddings.numpy())
    assert list(run.gallery().embedded.paths) == list(own.embedded.paths)
    assert json_of("index", runs[0], "--from", whole, "--store", tmp_path / "told")["images"] == 200


def test_embeddings_of_an_address_need_a_folder(make, whole, tmp_path, monkeypatch):
    from pml_ext_parts import reading

    run = make()
    about = reading.about
    monkeypatch.setattr(reading, "about", lambda file: about(file) | {"folder": "s3://bucket/photos"})
    with pytest.raises(ConfigError, match=r"the images are of s3://bucket/photos; type: pml-ext index RUN FOLDER"):
        run.write_index(whole)
    assert len(run.write_index(whole, tmp_path)) == 200
