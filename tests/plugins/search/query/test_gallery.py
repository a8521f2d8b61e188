"""The searchable index: exact distances, indexes by faiss, and an embedder that is no network."""

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext.errors import DataError
from pml_ext.plugin import SearchFilter
from pml_ext_search import open_index
from pml_ext_search.embedding.embedding import SkippedImage
from pml_ext_search.open_set.identify import Identifier
from pml_ext_search.query.query import QueryOptions
from pml_ext_search.query.ranking import with_exact_distances

from ..conftest import made_up

SIZE = 64
pytestmark = pytest.mark.filterwarnings("ignore:the indexed folder", "ignore::pml_ext_search.SkippedImage")
RED = (250, 20, 20)
BLUE = (20, 20, 250)


def test_a_collection_made_anew_is_reopened(make):
    """Its version begins at 1 again, as that of the collection that is open."""
    points = torch.nn.functional.normalize(torch.randn(30, 64, generator=torch.Generator().manual_seed(0)))
    run = make()
    gallery = made_up(run, points)
    assert answers(gallery, points[5:6], 2)[0].paths[0] == "00005.png"
    shutil.rmtree(run.collection.place)
    made_up(make(), points.flip(0))
    assert answers(gallery, points[5:6], 2)[0].paths[0] == "00024.png"


@pytest.mark.parametrize("factory", ["", "IVF4,PQ8x4"])
def test_distances_are_those_of_the_embeddings(make, factory):
    """faiss has others, of codes."""
    points = torch.nn.functional.normalize(torch.randn(400, 64, generator=torch.Generator().manual_seed(0)))
    points[200:] = points[:200]
    gallery = made_up(make(), points, factory)
    options = QueryOptions(k=8, where=SearchFilter(radius=1e-4))
    for number, answer in enumerate(gallery.answer([""] * 30, points[:30], options)):
        assert f"{number:05d}.png" in answer.paths
        rows = [gallery.embedded.paths.index(path) for path in answer.paths]
        wanted = (gallery.embedded.embeddings[rows] - points[number]).norm(dim=1)
        assert answer.distances == pytest.approx(wanted.tolist(), abs=1e-6)
        assert factory or len(rows) == 2


@pytest.mark.parametrize("most", [16, 80, 1000])
def test_exact_distances_are_computed_in_parts(monkeypatch, most):
    """Of queries, and of the many answers to one."""
    points = torch.nn.functional.normalize(torch.randn(50, 8, generator=torch.Generator().manual_seed(0)))
    places = torch.stack([torch.randperm(50, generator=torch.Generator().manual_seed(seed)) for seed in range(3)])
    largest = []

    class Vectors:
        device = points.device

        def __getitem__(self, rows):
            largest.append(rows.numel() * 8)
            return points[rows]

    monkeypatch.setattr("pml_ext_search.query.ranking._EXACT", most)
    distances, rows = with_exact_distances(points[:3], Vectors(), places)
    assert max(largest) <= most
    wanted = (points[:3, None] - points).norm(dim=2)
    torch.testing.assert_close(distances, wanted.sort(dim=1).values)
    torch.testing.assert_close(wanted.gather(1, rows), distances)


def clustered(count, classes, spread, seed):
    """Points on a sphere around centers, as embeddings are; the centers are the same for every seed."""
    centers = torch.nn.functional.normalize(torch.randn(classes, SIZE, generator=torch.Generator().manual_seed(0)))
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(count, SIZE, generator=generator) * spread / SIZE**0.5
    return torch.nn.functional.normalize(centers[torch.randint(classes, (count,), generator=generator)] + noise)


def recall(gallery, queries, k=10):
    """Against a plain matrix of distances."""
    exact = torch.cdist(queries, gallery.embedded.embeddings).topk(k, largest=False).indices
    right = 0
    for answer, numbers in zip(answers(gallery, queries, k), exact.tolist(), strict=True):
        right += len({*answer.paths} & {gallery.embedded.paths[number] for number in numbers})
    return right / (k * len(queries))


def answers(gallery, queries, k):
    return gallery.answer([""] * len(queries), queries, QueryOptions(k))


@pytest.mark.parametrize(
    ("factory", "count", "classes", "spread", "k"),
    [
        ("IVF64,Flat", 10_000, 100, 1.5, 100),
        ("IVF64,Flat", 10_000, 3000, 1.0, 100),
        ("HNSW16", 3000, 3000, 1.0, 999),
        ("Flat", 1000, 100, 1.5, 999),
    ],
)
def test_the_default_effort_finds_nine_of_ten(make, factory, count, classes, spread, k):
    gallery = made_up(make(), clustered(count, classes, spread, seed=1), factory)
    queries = clustered(100, classes, spread, seed=2)
    assert recall(gallery, queries) >= 0.9
    assert [len(answer.paths) for answer in answers(gallery, queries[:5], k)] == [k] * 5


def test_the_command_tells_effort_and_recall(command, runs, folder, tmp_path):
    done = command("index", runs[1], folder, "--store", tmp_path / "index", "--index", "IVF8,Flat")
    first, second = done.stdout.splitlines()
    assert first == f"200 images indexed: {tmp_path / 'index'}"
    assert second.startswith("IVF8,Flat with nprobe ")
    assert float(second.partition("recall@10 ")[2].split()[0]) >= 0.95


@pytest.mark.parametrize(
    ("most", "has_faiss", "given", "factory"),
    [
        (899, True, "", "IVF30,Flat"),
        (899, True, "exact", ""),
        (899, False, "", ""),
        (900, True, "", ""),
    ],
)
def test_the_default_index_depends_on_the_size(make, monkeypatch, most, has_faiss, given, factory):
    monkeypatch.setattr("pml_ext_search.collection.faiss_index.MOST_EXACT", most)
    monkeypatch.setattr("pml_ext_search.collection.faiss_index.has_faiss", lambda: has_faiss)
    gallery = made_up(make(), clustered(900, 50, 1.0, seed=1), given)
    assert gallery.factory == factory
    assert len(list(gallery.place.glob("*.faiss"))) == bool(factory)


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
    """Five red and five blue images of different sizes, and a file that is not an image."""
    for name, color in (("red", RED), ("blue", BLUE)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(5):
            picture = Image.new("RGB", (8 + number, 6), (color[0], 20 + 15 * number, color[2]))
            picture.save(tmp_path / "photos" / name / f"{number}.png")
    (tmp_path / "photos" / "broken.png").write_bytes(b"no image")
    return tmp_path / "photos"


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
    open_index(MeanColors(), tmp_path / "store").index(photos)
    assert open_index(MeanColors(), tmp_path / "store").gallery().embedded.embeddings.shape == (10, 3)
    other = open_index(MeanColors("medians"), tmp_path / "store")
    with pytest.raises(DataError, match=r"by another embedder .*open_index\(embedder, '.*store'\).index\('.*photos'\)"):
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
    colors = MeanColors()
    vars(colors).update(changes)
    index = open_index(colors, tmp_path / "store")
    with pytest.raises(DataError, match=text):
        index.index(photos)
    with pytest.raises(DataError, match="no index"):
        index.gallery()
