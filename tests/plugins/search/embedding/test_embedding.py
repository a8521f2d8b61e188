"""Embeddings of folders and of single files: what is computed, looked up, written and refused."""

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
from pml_ext_search.embedding.embedding import SkippedImage

from ..conftest import write_digits

BROKEN = {"2/broken.png", "notes.txt"}


def test_embeddings_are_those_of_the_run(runs, folder):
    from pml_ext_train.recipe import load_recipes
    from pml_ext_train.training.run import Run
    from pml_ext_train.training.state import load_model

    run = load_run(runs[0], "cpu")
    trained = Run(next(iter(load_recipes(str(runs[0] / "recipe.toml")).values())), "again", runs[0])
    load_model(trained, "model")
    images = [trained.splits["test"].image(index) for index in range(20)]
    expected = torch.nn.functional.normalize(trained.embeddings("test")[:20])
    torch.testing.assert_close(run.embed(images), expected)
    torch.testing.assert_close(run.embed(torch.stack(images)), expected)
    file = next(folder.glob("3/*.png"))
    assert run.embed(file).shape == run.embed([file]).shape == (1, 64)


@pytest.mark.parametrize(
    ("images", "error", "text"),
    [
        (None, TypeError, "wanted a path, a PIL image, .*; not a NoneType"),
        (b"photo.png", TypeError, "not a bytes"),
        ([np.zeros((8, 8))], TypeError, r"not a ndarray of float64 \[8, 8\]"),
        (np.zeros((5, 8, 8), np.uint8), DataError, "an image cannot be read"),
        (torch.zeros(3, 8, 8, dtype=torch.uint8), TypeError, "a tensor of 3 channels; the run's images have 1"),
        ([], DataError, "no images to embed"),
        ("nowhere.png", DataError, "no such file"),
        (__file__, DataError, "test_embedding.py: not a readable image"),
    ],
)
def test_embed_refuses_other_kinds_of_values(make, images, error, text):
    with pytest.raises(error, match=text) as caught:
        make().embed(images)
    assert "\n" not in str(caught.value)


def test_folders_without_an_image_are_refused(make, few, tmp_path, monkeypatch):
    run = make()
    (tmp_path / "only.txt").write_text("")
    with pytest.warns(SkippedImage), pytest.raises(DataError, match=r"no readable image among 1 file; .*: .*only"):
        run.embed_folder(tmp_path)
    with pytest.raises(DataError, match="no such folder"):
        run.embed_folder(tmp_path / "nowhere")
    monkeypatch.setattr(
        "pml_ext_search.embedding.batch_embedder.nn.functional.normalize", lambda rows: rows * torch.nan
    )
    for call, text in (
        (lambda: run.index(few[0]), r"one: its network gives NaN or infinity for 20 of 20 images, 0/0000.png"),
        (lambda: run.embed(torch.zeros(1, 1, 8, 8, dtype=torch.uint8)), r"NaN or infinity for 1 of 1 images"),
        (lambda: run.gallery(), "no index"),
    ):
        with pytest.raises(DataError, match=text):
            call()


@pytest.fixture
def images(tmp_path):
    return write_digits(tmp_path / "images", range(30))


def files_of(images):
    return sorted(images.glob("*/*.png"))


def counts_of(run):
    """How many images a run's network embeds from now on, for each batch."""
    counts = []
    run.images.computed.network.embedder.register_forward_hook(lambda _, inputs, __: counts.append(len(inputs[0])))
    return counts


def test_files_of_embedded_folders_are_looked_up(make, images, monkeypatch):
    run = make(workers=0)
    counts = counts_of(run)
    whole = run.embed_folder(images)
    monkeypatch.chdir(images.parent)
    (images.parent / "linked").symlink_to(images)
    some = files_of(images)[::-1]
    asked = [some[0], f"images/{whole.paths[3]}", images.parent / "linked" / whole.paths[5], str(some[0])]
    assert torch.equal(run.embed(asked), whole.embeddings[[29, 3, 5, 29]])
    assert torch.equal(run.embed(iter(some), batch_size=7), whole.embeddings.flip(0))
    assert sum(counts) == 30


def test_folders_of_embedded_files_are_looked_up(make, images):
    run = make(workers=0)
    counts = counts_of(run)
    files = files_of(images)
    first = run.embed([*files[:20], files[0]])
    assert sum(counts) == 20
    assert torch.equal(make(workers=0).embed(files[:20]), first[:20])
    embedded = run.index(images).embedded
    assert sum(counts) == 30
    assert embedded.paths == [path.relative_to(images).as_posix() for path in files]
    assert torch.equal(embedded.embeddings[:20], first[:20])
    scratch = make("other", workers=0).embed_folder(images)
    torch.testing.assert_close(embedded.embeddings, scratch.embeddings, rtol=0, atol=1e-5)


def test_few_files_write_no_collection(make, images, tmp_path):
    make().embed(files_of(images)[: embedding.SEVERAL - 1])
    assert not (tmp_path / "store").exists()
    make().embed(files_of(images)[: embedding.SEVERAL])
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == ["images.sqlite", "vectors.f32"]


def test_a_query_takes_what_the_index_has(make, images, tmp_path):
    run = make(workers=0)
    counts = counts_of(run)
    files = files_of(images)
    run.index(images)
    (tmp_path / "a link.png").symlink_to(files[4])
    known = run.query([files[3], tmp_path / "a link.png"], 3)
    assert sum(counts) == 30 + 1  # a link is a file of its own
    fresh = run.query([np.asarray(Image.open(path)) for path in files[3:5]], 4)
    assert sum(counts) == 31 + 2
    for mine, theirs, path in zip(known, fresh, files[3:5], strict=True):
        assert mine.paths == [other for other in theirs.paths if other != path.relative_to(images).as_posix()][:3]
    outside = shutil.copyfile(files[7], tmp_path / "outside.png")
    os.utime(files[5], ns=(1, 1))
    mixed = run.query([files[5], outside, files[3]], 3)
    assert sum(counts) == 33 + 2
    assert mixed[2] == known[0]
    assert mixed[1].paths[0] == files[7].relative_to(images).as_posix()
    assert [answer.query_class for answer in mixed] == [files[5].parent.name, None, files[3].parent.name]


def test_a_missing_file_is_named_as_given(make, images, tmp_path, monkeypatch):
    run = make(workers=0)
    files = files_of(images)
    (tmp_path / "linked").symlink_to(images)
    monkeypatch.chdir(tmp_path)
    for name in ("linked/nope.png", "nope.png", "a\0b.png", "x\0/b.png"):
        with pytest.raises(DataError, match=re.escape(f"{name}: no such file")):
            run.embed([*files[:10], name], batch_size=10)
    run.index(images)
    for name in ("linked/nope.png", "x\0/b.png"):
        with pytest.raises(DataError, match=re.escape(f"{name}: no such file")):
            run.query(name, 3)
    with pytest.raises(ConfigError, match="an empty path"):
        run.embed("")


def test_threads_embed_the_same_files_without_a_word(make, images, tmp_path, recwarn):
    run = make(workers=0)
    barrier = threading.Barrier(6)

    def work(number):
        barrier.wait(60)
        return run.embed_folder(images).embeddings if number == 0 else run.embed(files_of(images))

    with ThreadPoolExecutor(6) as pool:
        first, *others = pool.map(work, range(6))
    for result in others:
        torch.testing.assert_close(result, first, rtol=0, atol=1e-5)
    assert [str(one.message) for one in recwarn if issubclass(one.category, StoreWarning)] == []
    assert not list((tmp_path / "store").glob("*.tmp"))


def test_the_command_writes_embeddings_paths_and_classes(json_of, text_of, runs, folder, tmp_path):
    file = tmp_path / "new" / "all.npz"
    line = ("embed", runs[1], folder, "-o", file)
    assert "200 embeddings of size 64" in text_of(*line)
    told = json_of(*line)
    assert (told["file"], told["images"], told["size"], told["new"]) == (str(file), 200, 64, 0)
    assert told["skipped"].keys() == {"2/broken.png", "notes.txt"}
    with np.load(file) as saved:
        assert saved["embeddings"].shape == (200, 64)
        assert np.allclose(np.linalg.norm(saved["embeddings"], axis=1), 1, atol=1e-5)
        assert saved["paths"][0].startswith("0/")
        assert saved["classes"][0] == "0"
