"""The index of an embedder that is no network."""

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext.errors import DataError
from pml_ext_search import open_index
from pml_ext_search.embedding.embedding import SkippedImage
from pml_ext_search.open_set.identify import Identifier
from pml_ext_search.query.query import QueryOptions
from pml_ext_train.retrieval import SearchFilter

RED = (250, 20, 20)
BLUE = (20, 20, 250)


class MeanColors:
    """The mean of red, green and blue, which counts the images that it embeds."""

    size = 3

    def __init__(self, identity="mean colors", factor=1.0):
        self.identity = identity
        self.factor = factor
        self.images = 0

    def embed(self, images):
        self.images += len(images)
        return torch.tensor(np.array([np.asarray(image).mean(axis=(0, 1)) for image in images])) * self.factor


@pytest.fixture
def photos(tmp_path):
    """Five red and five blue images of different sizes, and a file that is none."""
    for name, color in (("red", RED), ("blue", BLUE)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(5):
            shade = (color[0], 20 + 15 * number, color[2])
            Image.new("RGB", (8 + number, 6), shade).save(tmp_path / "photos" / name / f"{number}.png")
    (tmp_path / "photos" / "broken.png").write_bytes(b"no image")
    return tmp_path / "photos"


@pytest.mark.filterwarnings("ignore::pml_ext_search.embedding.embedding.SkippedImage")
def test_a_folder_is_searched_by_mean_colors(photos, tmp_path):
    colors = MeanColors()
    index = open_index(colors, tmp_path / "store")
    with pytest.warns(SkippedImage, match="broken"):
        gallery = index.index(photos)
    assert (len(gallery), colors.images) == (10, 10)
    (answer,) = index.query(photos / "red" / "2.png", QueryOptions(4))
    assert [path.partition("/")[0] for path in answer.paths] == ["red"] * 4
    assert {*answer.paths[:2]} == {"red/1.png", "red/3.png"}
    mine, other = (np.array([250, 20 + 15 * number, 20.0]) for number in (2, 3))
    wanted = np.linalg.norm(mine / np.linalg.norm(mine) - other / np.linalg.norm(other))
    assert dict(zip(answer.paths, answer.distances, strict=True))["red/3.png"] == pytest.approx(wanted, abs=1e-5)
    assert colors.images == 10  # the index has it

    (green,) = index.query(Image.new("L", (5, 5), 90), QueryOptions(5, SearchFilter("blue")))
    assert {*green.classes} == {"blue"}
    shutil.copyfile(photos / "red" / "0.png", photos / "blue" / "new.png")
    assert str(index.index().changes) == "1 new, 0 changed, 0 gone, 10 as before"
    assert colors.images == 12
    identifier = Identifier(index, None, print)
    found = identifier.identified(identifier.queries(photos / "blue" / "1.png"), 2, 0.1, "image")
    assert (found[0].name, found[0].classes) == ("blue", ["blue", "red"])


def test_a_collection_belongs_to_its_embedder(photos, tmp_path):
    (photos / "broken.png").unlink()
    open_index(MeanColors(), tmp_path / "store").index(photos)
    assert open_index(MeanColors(), tmp_path / "store").gallery().embedded.embeddings.shape == (10, 3)
    other = open_index(MeanColors("medians"), tmp_path / "store")
    command = r"open_index\(embedder, '.*store'\).index\('.*photos'\)"
    with pytest.raises(DataError, match=rf"built by another embedder .*{command}"):
        other.gallery()
    with pytest.raises(DataError, match="built by another embedder"):
        other.index(photos)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"factor": float("nan")}, "mean colors: the embedder gives NaN or infinity for 10 of 10 images"),
        ({"size": 4}, r"mean colors returned embeddings of the shape \[10, 3\] for 10 images; its size is 4"),
    ],
)
def test_wrong_embeddings_are_not_written(photos, tmp_path, changes, text):
    (photos / "broken.png").unlink()
    colors = MeanColors()
    vars(colors).update(changes)
    index = open_index(colors, tmp_path / "store")
    with pytest.raises(DataError, match=text):
        index.index(photos)
    with pytest.raises(DataError, match="no index"):
        index.gallery()
