"""Near copies: thumbnails and their parts, the pairs within a radius, and the radius."""

import math

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.cluster.hierarchy import linkage
from scipy.ndimage import map_coordinates, uniform_filter

from pml_ext_copies import thumbnails as module
from pml_ext_copies.near_pairs import Pairs, components, forest, shortest_pairs
from pml_ext_copies.radius import CHANGES, HELD, SAMPLE, chosen_radius, distances_of_copies, nearest_beyond
from pml_ext_copies.thumbnails import COMPARED, NOISE, PARTS, Thumbnails, candidates, read_thumbnails, thumbnail_of

from ..search.photographs import photograph, stacked


def thumbnails_of(images):
    return Thumbnails.of(stacked([thumbnail_of(image) for image in images]))


def distance(one, other):
    return thumbnails_of([one, other]).distances(np.array([0]), np.array([1])).item()


def sampled(gray, part, side):
    """Bilinear values of a part, in float64."""
    width, height, x, y = part
    centers = (2 * np.arange(side) + 1) / side - 1
    places = np.meshgrid(centers * height + y, centers * width + x, indexing="ij")
    return map_coordinates(gray, [(place + 1) * 32 - 0.5 for place in places], order=1, mode="nearest")


def part_by_scipy(image, part):
    pixels = thumbnail_of(image).double().numpy()
    values = sampled(uniform_filter(pixels[0], 3, mode="nearest"), part, COMPARED).ravel()
    colors = pixels.reshape(3, -1).mean(1) - 128
    flat = np.array([colors[0], 2 * colors[1], 2 * colors[2], 64])
    vector = np.concatenate([values - values.mean(), NOISE * COMPARED * flat / np.linalg.norm(flat)])
    return vector / np.linalg.norm(vector)


@pytest.mark.parametrize("part", [PARTS[0], PARTS[3], PARTS[40], PARTS[-1]])
def test_vectors_of_parts_match_scipy(part):
    images = [photograph(0), photograph(1, 60)]
    found = thumbnails_of(images).vectors(slice(None), [PARTS[0], part])
    for place, image in enumerate(images):
        np.testing.assert_allclose(found[place, 1], part_by_scipy(image, part), atol=1e-5)


def test_parts_are_inside_and_keep_most():
    assert len(PARTS) == len(set(PARTS)) > 100
    parts = np.array(PARTS)
    assert parts[:, :2].min() >= 0.78
    assert (abs(parts[:, 2:]) <= 1 - parts[:, :2] + 1e-9).all()


@pytest.mark.parametrize("corners", [(0, 0, 190, 160), (30, 10, 213, 150), (11, 20, 200, 160), (5, 0, 175, 128)])
def test_a_part_is_near_the_whole(corners):
    image = photograph(3)
    part = image.crop(corners)
    assert distance(image, part) == distance(part, image) < 0.08
    plain = thumbnails_of([image, part]).wholes
    assert (plain[0] - plain[1]).norm() > 2 * distance(image, part)


def test_brightness_and_contrast_do_not_count():
    image = photograph(4)
    pixels = np.asarray(image, dtype=np.float64)
    assert distance(image, Image.fromarray((0.5 * pixels + 30).astype(np.uint8))) < 0.1
    assert distance(image, photograph(5)) > 0.5


def test_plain_images_are_compared_by_their_color():
    red, green, gray, other_gray = (
        Image.new("RGB", (90, 60), color) for color in ((200, 30, 30), (30, 120, 30), (90, 90, 90), (94, 94, 94))
    )
    assert distance(red, green) > 0.5
    assert distance(red, red) < 1e-3
    assert distance(gray, other_gray) < 0.1
    assert distance(Image.new("L", (60, 60), 0), Image.new("L", (60, 60), 255)) > 1
    noisy = np.random.default_rng(0).integers(89, 92, (60, 90, 3), dtype=np.uint8)
    assert distance(gray, Image.fromarray(noisy)) < 0.3


def details_by_scipy(image):
    """The details of a whole thumbnail at 48 x 48 pixels, less the mean of 9 x 9 around each."""
    shown = sampled(thumbnail_of(image)[0].double().numpy(), module.WHOLE, 48)
    vector = np.append(shown - uniform_filter(shown, 9, mode="nearest"), 0.5 * 48)
    return vector / np.linalg.norm(vector)


def test_details_distinguish_photographs_of_similar_structure():
    rng = np.random.default_rng(3)
    slow = np.asarray(photograph(6).resize((6, 6)).resize((256, 256)), dtype=np.float64) * 0.6 + 50
    images = []
    for _ in range(2):
        texture = Image.fromarray(rng.integers(0, 256, (48, 48), dtype=np.uint8)).resize((256, 256))
        pixels = slow + 0.1 * (np.asarray(texture)[..., None] - 128.0)
        images.append(Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)))
    plain = thumbnails_of(images).wholes
    assert (plain[0] - plain[1]).norm() < 0.25
    details = [details_by_scipy(image) for image in images]
    wanted = np.linalg.norm(details[0] - details[1]) / 2
    assert wanted > 0.5
    assert distance(*images) == pytest.approx(wanted, abs=0.1)  # of the part that fits best
    whole = torch.tensor([module.WHOLE])
    product = thumbnails_of(images)._products_of_details(np.array([0]), whole, np.array([1])).item()
    assert product == pytest.approx(float(details[0] @ details[1]), abs=1e-5)


def test_candidates_are_the_nearest_of_each(monkeypatch):
    monkeypatch.setattr(module, "NEIGHBORS", 2)
    monkeypatch.setattr(module, "_TILE", 7)
    images = thumbnails_of([photograph(number) for number in range(20)])
    wholes = images.wholes
    found = {*zip(*(numbers.tolist() for numbers in candidates(images, [np.arange(20)])), strict=True)}
    wanted = set()
    for part in module.COARSE_PARTS:
        for one in range(20):
            products = (images.vectors(np.array([one]), [part])[0, 0] @ wholes.T).tolist()
            nearest = sorted(range(20), key=lambda other, products=products: -products[other])[:3]
            wanted |= {(min(one, other), max(one, other)) for other in nearest if other != one}
    assert found == wanted


def test_candidates_of_two_sets_are_between_them(monkeypatch):
    images = thumbnails_of([photograph(number % 10) for number in range(20)])
    new, old = np.arange(10), np.arange(10, 20)
    first, second = candidates(images, [new, old])
    assert first.max() < 10 <= second.min()
    assert {(number, number + 10) for number in range(10)} <= set(zip(first.tolist(), second.tolist(), strict=True))
    assert candidates(images, [new, old[:0]])[0].size == 0


def test_lists_of_faiss_find_copies(monkeypatch):
    pytest.importorskip("faiss", reason="needs the extra cpu")
    monkeypatch.setattr("pml_ext.evaluation.neighbors._MOST_EXACT", 50)
    images = thumbnails_of([photograph(number % 60) for number in range(120)])
    first, second = candidates(images, [np.arange(120)])
    assert {(number, number + 60) for number in range(60)} <= set(zip(first.tolist(), second.tolist(), strict=True))


def test_unreadable_files_are_named_in_order(files):
    files[2].write_bytes(b"no image")
    done = []
    read, problems = read_thumbnails(files, done.append)
    assert list(problems) == [2]
    assert "2.png: not a readable image" in problems[2]
    assert done == [1, 2, 3, 4, 5, 6, 7]
    for number in (0, 1, 3, 4, 5, 6):
        assert torch.equal(read.gray[number], thumbnail_of(photograph(number))[0])
    assert len(read_thumbnails([])[0].wholes) == 0


def chain_and_copies():
    points = torch.nn.functional.normalize(torch.randn(150, 64, generator=torch.Generator().manual_seed(0)))
    points[100] = points[3]
    points[50] = torch.nn.functional.normalize(points[3] + 0.01 * points[4], dim=0)
    for step in range(3):  # a chain whose ends are farther apart than the radius
        points[120 + step] = torch.nn.functional.normalize(points[7] + 0.08 * (step + 1) * points[8], dim=0)
    return points


@pytest.fixture(params=["all pairs", "lists"])
def blocks(request, monkeypatch):
    monkeypatch.setattr("pml_ext_copies.near_pairs._TILE", 33)
    monkeypatch.setattr("pml_ext_copies.near_pairs._BLOCK", 33)
    monkeypatch.setattr("pml_ext_copies.near_pairs._WAITING", 20)
    if request.param == "lists":
        pytest.importorskip("faiss", reason="needs the extra cpu")
        monkeypatch.setattr("pml_ext.evaluation.neighbors._MOST_EXACT", 100)


@pytest.mark.parametrize("radius", [1e-4, 0.1, 1.2])
def test_pairs_are_the_merges_of_single_linkage(blocks, radius):
    points = chain_and_copies()
    heights = linkage(points.double().numpy(), "single")[:, 2]
    found = shortest_pairs(points, radius)
    np.testing.assert_allclose(found.distances, heights[heights <= radius], atol=1e-6)
    np.testing.assert_allclose((points[found.first] - points[found.second]).norm(dim=1), found.distances, atol=1e-6)


def test_groups_are_what_pairs_connect(blocks):
    assert sorted(components(shortest_pairs(chain_and_copies(), 0.1), 150)) == [[3, 50, 100], [7, 120, 121, 122]]


def test_equal_vectors_are_one_group(blocks):
    found = shortest_pairs(torch.full((1000, 64), 0.125), 1e-3)
    assert len(found.first) == 999
    assert found.distances.max() == 0
    assert components(found, 1000) == [list(range(1000))]


def test_the_forest_keeps_the_shortest_repeated_pairs():
    pairs = Pairs(
        np.array([0, 1, 2, 2, 4]), np.array([1, 0, 0, 1, 4]), np.array([0.5, 0.2, 0.3, 0.4, 0.0], dtype=np.float32)
    )
    kept = forest(pairs, 5)
    assert kept.first.tolist() == [0, 0]
    assert kept.second.tolist() == [1, 2]
    np.testing.assert_allclose(kept.distances, [0.2, 0.3])


def test_no_vectors_have_no_pairs():
    assert shortest_pairs(torch.zeros(0, 8), 0.5).first.tolist() == []
    assert components(shortest_pairs(torch.eye(3), 0.5), 3) == []


@pytest.fixture
def files(tmp_path):
    for number in range(7):
        photograph(number).save(tmp_path / f"{number}.png")
    return sorted(tmp_path.glob("*.png"))


def pairs_of(*edges):
    first, second, distances = zip(*edges, strict=True)
    return Pairs(np.array(first), np.array(second), np.array(distances, dtype=np.float32))


def test_distances_are_those_of_each_change(files):
    """Each copy is compared with its own photograph, one after the other."""
    images = [Image.open(file) for file in files]
    wanted = [distance(change(image), image) for image in images for change in CHANGES]
    np.testing.assert_allclose(distances_of_copies(files), wanted, atol=5e-3)  # the fit takes other steps by rounding
    assert 0 < max(wanted) < 0.3


def test_the_radius_lies_between_copies_and_others(files):
    held = np.quantile(distances_of_copies(files), HELD)
    radius, made_up = chosen_radius(files, pairs_of((0, 1, 0.9), (1, 2, 1.1), (3, 4, 1.0), (5, 6, 0.01)), 7)
    other = np.median([0.9, 0.9, 1.1, 1.0, 1.0])  # images 5 and 6 are copies of each other
    assert radius == pytest.approx(math.sqrt(held * other / 3), rel=1e-5)
    assert made_up == 7 * len(CHANGES)
    assert chosen_radius(files, pairs_of((0, 1, 2.01 * held)), 7)[0] == pytest.approx(held)
    assert chosen_radius(files, pairs_of((5, 6, 0.01)), 7)[0] == pytest.approx(held)


def test_a_sample_of_many_files_is_drawn(files):
    assert chosen_radius(files * 20, pairs_of((0, 1, 0.9)), 140)[1] == SAMPLE * len(CHANGES)


def test_unreadable_files_are_left_out(files, tmp_path):
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no image")
    assert len(distances_of_copies([files[0], broken, tmp_path / "gone.png"])) == len(CHANGES)
    assert chosen_radius([broken], pairs_of((0, 1, 0.9)), 2) == (0, 0)


def test_nearest_distances_skip_pairs_within_the_radius():
    pairs = pairs_of((0, 1, 0.2), (0, 2, 0.5), (1, 2, 0.7), (3, 4, 0.1))
    for distance, wanted in ((0.15, [0.2, 0.2, 0.5]), (0.3, [0.5, 0.7, 0.5]), (0.8, [])):
        assert nearest_beyond(pairs, 6, distance).tolist() == pytest.approx(wanted)


@pytest.mark.parametrize(("size", "copies"), [((17_000, 600), len(CHANGES)), ((100_000, 1), 0), ((1, 60_000), 0)])
def test_copies_of_panoramas_fit_their_formats(tmp_path, size, copies):
    photograph(0).resize(size).save(tmp_path / "long.png")
    assert len(distances_of_copies([tmp_path / "long.png"])) == copies
