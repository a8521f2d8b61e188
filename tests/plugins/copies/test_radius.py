"""Made-up copies, and the radius between them and the nearest other photographs."""

import math

import numpy as np
import pytest
from PIL import Image

from pml_ext_copies.near_pairs import Pairs
from pml_ext_copies.radius import CHANGES, HELD, SAMPLE, chosen_radius, distances_of_copies, nearest_beyond
from pml_ext_copies.thumbnails import Thumbnails, thumbnail_of

from ..search.photographs import photograph, stacked


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
    wanted = []
    for file in files:
        image = Image.open(file)
        for change in CHANGES:
            pair = Thumbnails.of(stacked([thumbnail_of(image), thumbnail_of(change(image))]))
            wanted.append(pair.distances(np.array([1]), np.array([0])).item())
    np.testing.assert_allclose(distances_of_copies(files), wanted, atol=5e-3)  # the fit takes other steps by rounding
    assert 0 < max(wanted) < 0.3


def test_the_radius_lies_between_copies_and_others(files):
    pairs = pairs_of((0, 1, 0.9), (1, 2, 1.1), (3, 4, 1.0), (5, 6, 0.01))
    held = np.quantile(distances_of_copies(files), HELD)
    radius, made_up = chosen_radius(files, pairs, 7)
    other = np.median([0.9, 0.9, 1.1, 1.0, 1.0])  # images 5 and 6 are copies of each other
    assert radius == pytest.approx(math.sqrt(held * other / 3), rel=1e-5)
    assert made_up == 7 * len(CHANGES)
    near_others = pairs_of((0, 1, 2.01 * held))
    assert chosen_radius(files, near_others, 7)[0] == pytest.approx(held)
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
