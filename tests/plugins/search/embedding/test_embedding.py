"""Embeddings of single images and of folders, and the kinds of images that are accepted and refused."""

import numpy as np
import pytest
import torch

from pml_ext import load_run
from pml_ext.errors import DataError
from pml_ext_search.embedding.embedding import SkippedImage

BROKEN = {"2/broken.png", "notes.txt"}


def test_embeddings_are_those_of_the_run(runs, folder):
    from pml_ext_train.recipe import load_recipes
    from pml_ext_train.training.run import Run
    from pml_ext_train.training.state import load_model

    run = load_run(runs[0], "cpu")
    recipe = next(iter(load_recipes(str(runs[0] / "recipe.toml")).values()))
    trained = Run(recipe, "again", runs[0])
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
