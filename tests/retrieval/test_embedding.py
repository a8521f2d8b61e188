"""Embeddings of single images and of folders, and what is no image."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from pml_ext import load_run
from pml_ext.errors import DataError
from pml_ext.retrieval import Embedded, SkippedImage, save_embeddings

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


def test_what_is_an_image(runs_one, folder):
    """Each of these is the same image, or the same three."""
    files = sorted(folder.glob("3/*.png"))[:3]
    pictures = [Image.open(file) for file in files]
    arrays = [np.asarray(picture) for picture in pictures]
    expected = runs_one.embed(files)
    same = lambda images, rows=slice(None), **more: torch.testing.assert_close(  # noqa: E731
        runs_one.embed(images, **more), expected[rows], rtol=0, atol=1e-5
    )
    same(pictures)
    same(arrays)
    same(picture.convert("RGBA") for picture in pictures)
    same((file for file in files), batch_size=2)
    same(np.stack([np.stack([array] * 3, -1) for array in arrays]))
    same([array[..., None] for array in arrays])
    same(torch.from_numpy(np.stack(arrays))[:, None])
    one = slice(0, 1)
    for image in (str(files[0]), pictures[0], arrays[0], torch.from_numpy(arrays[0].copy())[None]):
        same(image, one)
    turned = pictures[0].rotate(90, expand=True)
    turned.getexif()[0x0112] = 6
    same(turned, one)
    assert [answer.query for answer in runs_one.query((a for a in arrays), 1)] == ["image 0", "image 1", "image 2"]


def test_a_generator_is_read_as_it_is_embedded(runs_one):
    taken = []

    def images():
        for number in range(10):
            taken.append(number)
            yield np.zeros((8, 8), dtype=np.uint8)

    sizes = []
    runs_one.network.register_forward_pre_hook(lambda _, batch: sizes.append((len(batch[0]), len(taken))))
    assert runs_one.embed(images(), batch_size=4).shape == (10, 64)
    assert [size for size in sizes if size[0] > 1] == [(4, 4), (4, 8), (2, 10)]


@pytest.mark.parametrize(
    ("images", "error", "text"),
    [
        (None, TypeError, "wanted images, or a folder, not NoneType None; an image is a path"),
        (3, TypeError, "not int 3"),
        ({"a": 1}, TypeError, "not dict"),
        (b"photo.png", TypeError, "not bytes"),
        ([None], TypeError, "not NoneType None"),
        ([np.zeros((8, 8))], TypeError, r"not a array of float64 \[8, 8\]"),
        (np.zeros((5, 8, 8), np.uint8), TypeError, r"array of the shape \[5, 8, 8\] is no image .* pass several"),
        ([np.zeros((0, 8), np.uint8)], TypeError, r"uint8 \[0, 8\]"),
        (torch.zeros(3, 8, 8, dtype=torch.uint8), TypeError, "a tensor of 3 channels; the run's images have 1"),
        (torch.zeros(2, 8, 8, dtype=torch.uint8), TypeError, r"tensor of uint8 \[2, 8, 8\]"),
        ([], DataError, "no images to embed"),
        (["/"], DataError, "a folder; wanted an image file"),
    ],
)
def test_what_is_no_image(runs_one, images, error, text):
    with pytest.raises(error, match=text.replace("a array", "an array")) as caught:
        runs_one.embed(images)
    assert "\n" not in str(caught.value)


def test_the_command_writes_parquet_and_json(command, runs, few, tmp_path):
    done = command("embed", runs[1], few[0], "-o", tmp_path / "all.parquet", "--json", "--workers", 0)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["file"], said["images"], said["size"], said["skipped"]) == (str(tmp_path / "all.parquet"), 20, 64, {})
    table = pq.read_table(tmp_path / "all.parquet")
    assert table.column_names == ["path", "class", "size", "modified_ns", "embedding"]
    names = table["path"].to_pylist()
    assert table["class"].to_pylist() == [name[0] for name in names]
    assert table["size"].to_pylist() == [(few[0] / name).stat().st_size for name in names]
    embeddings = torch.tensor(table["embedding"].to_pylist())
    torch.testing.assert_close(embeddings, load_run(runs[1], "cpu").embed([few[0] / name for name in names]))
    odd = Embedded(few[0], ["caf\udce9.png"], torch.ones(1, 2), {})
    save_embeddings(odd, tmp_path / "odd.parquet")
    assert pq.read_table(tmp_path / "odd.parquet")["path"].to_pylist() == [b"caf\xe9.png"]


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
    assert "notes.txt" in done.stderr
    with np.load(tmp_path / "new" / "all.npz") as saved:
        assert saved["embeddings"].shape == (200, 64)
        assert np.allclose(np.linalg.norm(saved["embeddings"], axis=1), 1, atol=1e-5)
        assert saved["paths"][0].startswith("0/")
        assert saved["classes"][0] == "0"
