"""Embeddings of single images and of folders, and what is no image."""

import numpy as np
import pytest
import torch

from pml_ext import load_run
from pml_ext.errors import DataError
from pml_ext.retrieval import SkippedImage

BROKEN = {"2/broken.png", "notes.txt"}


def test_embeddings_are_those_of_the_run(runs, folder):
    from pml_ext.experiment import load_recipes
    from pml_ext.experiment.run import Run

    run = load_run(runs[0], "cpu")
    recipe = next(iter(load_recipes(str(runs[0] / "recipe.toml")).values()))
    trained = Run(recipe, "again", runs[0])
    trained.load_model_state(torch.load(runs[0] / "checkpoints" / "model.pt"))
    images = [trained.splits["test"].image(index) for index in range(20)]
    expected = trained.embeddings("test")[:20]
    torch.testing.assert_close(run.embed(images, normalize=False), expected)
    embeddings = run.embed(torch.stack(images))
    torch.testing.assert_close(embeddings, torch.nn.functional.normalize(expected))
    file = next(folder.glob("3/*.png"))
    assert run.embed(file).shape == run.embed([file]).shape == (1, 64)


def test_a_folder_with_unreadable_files(indexed, folder):
    run, gallery = indexed
    with pytest.warns(SkippedImage) as heard:
        embedded = run.embed_folder(folder)
    assert {str(warning.message).split(":")[0].split("/")[-1] for warning in heard} == {"broken.png", "notes.txt"}
    assert set(embedded.skipped) == BROKEN == set(gallery.embedded.skipped)
    assert len(embedded.paths) == len(embedded.embeddings) == 200
    assert embedded.paths == sorted(embedded.paths)
    assert embedded.classes[:3] == ["0", "0", "0"]


def test_wrong_images(indexed, folder, tmp_path):
    run, _ = indexed
    with pytest.raises(DataError, match="no such file"):
        run.embed("nowhere.png")
    with pytest.raises(DataError, match=r"broken.png: not a readable image"):
        run.embed(folder / "2" / "broken.png")
    with pytest.raises(TypeError, match="uint8"):
        run.embed([torch.zeros(1, 8, 8)])
    (tmp_path / "only.txt").write_text("")
    with (
        pytest.warns(SkippedImage),
        pytest.raises(DataError, match="no readable image among 1 files; the first: .*only"),
    ):
        run.embed_folder(tmp_path)
    with pytest.raises(DataError, match="no such folder"):
        run.embed_folder(tmp_path / "nowhere")


def test_embeddings_that_are_not_finite_are_refused(runs, few, tmp_path):
    run = load_run(runs[0], "cpu", store=tmp_path / "store")
    run.embedder.bias.data[3] = torch.nan
    with pytest.raises(DataError, match=r"one: its network gives NaN or infinity for 20 of 20 images, 0/0000.png"):
        run.index(few[0], tmp_path / "index")
    with pytest.raises(DataError, match=r"NaN or infinity for 1 of 1 images"):
        run.embed(torch.zeros(1, 1, 8, 8, dtype=torch.uint8))
    assert not (tmp_path / "index").exists()


def test_the_command_writes_embeddings_paths_and_classes(command, runs, folder, tmp_path):
    done = command("embed", runs[1], folder, "-o", tmp_path / "new" / "all.npz")
    assert done.returncode == 0, done.stderr
    assert "200 embeddings of size 64" in done.stdout
    assert "broken.png" in done.stderr
    assert "2 files skipped" in done.stderr
    with np.load(tmp_path / "new" / "all.npz") as saved:
        assert saved["embeddings"].shape == (200, 64)
        assert np.allclose(np.linalg.norm(saved["embeddings"], axis=1), 1, atol=1e-5)
        assert saved["paths"][0].startswith("0/")
        assert saved["classes"][0] == "0"
