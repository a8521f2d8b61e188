"""Single files: those that the collection has are not embedded again, and several new ones are written to it."""

import os
import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext import load_run
from pml_ext.errors import ConfigError, DataError
from pml_ext_search.collection.problems import StoreWarning
from pml_ext_search.embedding import embedding

from .conftest import write_digits


class CountedRun:
    """A run with a collection of its own, which counts the images that its network embeds."""

    def __init__(self, folder, store):
        self.run = load_run(folder, "cpu", workers=0, store=store)
        self.embedded = 0
        self.run.images.computed.network.embedder.register_forward_hook(self._count)

    def _count(self, _, inputs, __):
        self.embedded += len(inputs[0])

    def since(self):
        """How many since this was asked before."""
        count = self.embedded
        self.embedded = 0
        return count


@pytest.fixture
def images(tmp_path):
    write_digits(tmp_path / "images", range(30))
    return tmp_path / "images"


@pytest.fixture
def make(runs, tmp_path):
    return lambda: CountedRun(runs[0], tmp_path / "store")


def files_of(images):
    return sorted(images.glob("*/*.png"))


def test_files_of_embedded_folders_are_looked_up(make, images, monkeypatch):
    counted = make()
    whole = counted.run.embed_folder(images)
    assert counted.since() == 30
    monkeypatch.chdir(images.parent)
    (images.parent / "linked").symlink_to(images)
    some = [*reversed(files_of(images))]
    asked = [some[0], f"images/{whole.paths[3]}", images.parent / "linked" / whole.paths[5], str(some[0])]
    rows = [whole.paths.index(some[0].relative_to(images).as_posix()), 3, 5]
    assert torch.equal(counted.run.embed(asked), whole.embeddings[[*rows, rows[0]]])
    assert torch.equal(counted.run.embed(iter(some), batch_size=7), whole.embeddings.flip(0))
    assert counted.since() == 0


def test_folders_of_embedded_files_are_looked_up(make, images, tmp_path):
    counted = make()
    files = files_of(images)
    first = counted.run.embed([*files[:20], files[0]])
    assert counted.since() == 20
    assert torch.equal(make().run.embed(files[:20]), first[:20])
    gallery = counted.run.index(images)
    assert (counted.since(), gallery.embedded.paths) == (10, [path.relative_to(images).as_posix() for path in files])
    assert torch.equal(gallery.embedded.embeddings[:20], first[:20])
    scratch = CountedRun(counted.run.folder, tmp_path / "other").run.embed_folder(images)
    torch.testing.assert_close(gallery.embedded.embeddings, scratch.embeddings, rtol=0, atol=1e-5)


def test_few_files_write_no_collection(make, images, tmp_path):
    counted = make()
    counted.run.embed(files_of(images)[: embedding.SEVERAL - 1])
    assert not (tmp_path / "store").exists()
    counted.run.embed(files_of(images)[: embedding.SEVERAL])
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == ["images.sqlite", "vectors.f32"]


def test_a_query_takes_what_the_index_has(make, images, tmp_path):
    counted = make()
    files = files_of(images)
    counted.run.index(images)
    counted.since()
    (tmp_path / "a link.png").symlink_to(files[4])
    known = counted.run.query([files[3], tmp_path / "a link.png"], 3)
    assert counted.since() == 1  # a link is a file of its own
    arrays = [np.asarray(Image.open(path)) for path in files[3:5]]
    fresh = counted.run.query(arrays, 4)
    assert counted.since() == 2
    for mine, theirs, path in zip(known, fresh, files[3:5], strict=True):
        name = path.relative_to(images).as_posix()
        assert mine.paths == [other for other in theirs.paths if other != name][:3]
    outside = tmp_path / "outside.png"
    shutil.copyfile(files[7], outside)
    os.utime(files[5], ns=(1, 1))
    mixed = counted.run.query([files[5], outside, files[3]], 3)
    assert counted.since() == 2
    assert mixed[2] == known[0]
    assert mixed[1].paths[0] == files[7].relative_to(images).as_posix()
    assert [answer.query_class for answer in mixed] == [files[5].parent.name, None, files[3].parent.name]


def test_a_missing_file_is_named_as_given(make, images, tmp_path, monkeypatch):
    counted = make()
    files = files_of(images)
    (tmp_path / "linked").symlink_to(images)
    monkeypatch.chdir(tmp_path)
    for name in ("linked/nope.png", "nope.png", "a\0b.png", "x\0/b.png"):
        with pytest.raises(DataError, match=re.escape(f"{name}: no such file")):
            counted.run.embed([*files[:10], name], batch_size=10)
    assert counted.since() == 10
    counted.run.index(images)
    for name in ("linked/nope.png", "x\0/b.png"):
        with pytest.raises(DataError, match=re.escape(f"{name}: no such file")):
            counted.run.query(name, 3)
    with pytest.raises(ConfigError, match="an empty path"):
        counted.run.embed("")


def test_threads_embed_the_same_files_without_a_word(runs, images, tmp_path, recwarn):
    run = load_run(runs[0], "cpu", workers=0, store=tmp_path / "store")
    files = files_of(images)
    barrier = threading.Barrier(6)

    def work(number):
        barrier.wait(60)
        return run.embed_folder(images).embeddings if number == 0 else run.embed(files)

    with ThreadPoolExecutor(6) as pool:
        results = [*pool.map(work, range(6))]
    for result in results:
        torch.testing.assert_close(result, results[0], rtol=0, atol=1e-5)
    assert [str(one.message) for one in recwarn if issubclass(one.category, StoreWarning)] == []
    assert not list((tmp_path / "store").glob("*.tmp"))
