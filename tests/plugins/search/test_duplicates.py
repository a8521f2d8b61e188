"""Copies among images: exact ones, those of the same pixels, and near ones."""

import os
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext.errors import ConfigError
from pml_ext_search.duplicates import find_duplicates
from pml_ext_search.embedded import Embedded

from .photographs import embedded, photograph, thumbnails, write_copies


def write_kinds(place):
    """Twelve photographs; of the first ones, copies of the same bytes, the same pixels and nearly the same."""
    place.mkdir()
    (place / "sub").mkdir()
    for number in range(12):
        photograph(number).save(place / f"{number}.png")
    shutil.copy(place / "0.png", place / "sub" / "exact.png")
    shutil.copy(place / "0.png", place / "exact $1_3.png")
    photograph(0).save(place / "same.bmp")
    photograph(1).save(place / "same.tif")
    photograph(0, 320).save(place / "near.jpg", quality=80)
    photograph(2, 80).save(place / "small.jpg", quality=60)
    return place


def paths_of(groups):
    return [[image.path for image in group.images] for group in groups]


def test_three_kinds_of_copies_are_told_apart(tmp_path):
    folder = write_kinds(tmp_path / "images")
    for number, name in enumerate(("0.png", "exact $1_3.png", "sub/exact.png")):
        os.utime(folder / name, (1000 + number, 1000 + number))
    found = find_duplicates(embedded(folder), thumbnails)
    assert paths_of(found.of_kind("exact")) == [["0.png", "exact $1_3.png", "sub/exact.png"]]
    assert sorted(paths_of(found.of_kind("same"))) == [["same.bmp", "0.png"], ["same.tif", "1.png"]]
    assert sorted(paths_of(found.of_kind("near"))) == [["2.png", "small.jpg"], ["near.jpg", "same.bmp"]]
    assert found.images == 18


def test_distances_are_those_in_the_metric(tmp_path):
    folder = write_kinds(tmp_path / "images")
    found = find_duplicates(embedded(folder), thumbnails)
    for group in found.groups:
        assert group.images[0].distance == 0
        distances = [image.distance for image in group.images[1:]]
        assert distances == sorted(distances)
        assert len(group.pairs) == len(group.images) - 1
        if group.kind != "near":
            assert max(distances) < 1e-4
    (near,) = [group for group in found.of_kind("near") if group.largest == "near.jpg"]
    assert 1e-4 < near.images[1].distance <= found.radius < found.nearest_other
    assert near.pairs == [("same.bmp", "near.jpg", pytest.approx(near.images[1].distance))] or near.pairs == [
        ("near.jpg", "same.bmp", pytest.approx(near.images[1].distance))
    ]
    first = near.images[0]
    assert (first.width, first.height, first.bytes) == (426, 320, (folder / "near.jpg").stat().st_size)


def test_changes_of_photographs_are_found_by_the_default(tmp_path):
    for number in range(10):
        write_copies(tmp_path / "images", number)
    found = find_duplicates(embedded(tmp_path / "images"), thumbnails)
    groups = paths_of(found.groups)
    assert all(len({path[:2] for path in group}) == 1 for group in groups)
    assert sum(len(group) for group in groups) >= 75
    assert all(path.endswith("-doubled.png") for path in (group.largest for group in found.groups))
    again = find_duplicates(embedded(tmp_path / "images"), thumbnails)
    assert again == found


def test_a_radius_that_is_given_is_taken(tmp_path):
    images = embedded(write_kinds(tmp_path / "images"))
    found = find_duplicates(images, thumbnails, radius=1e-3)
    assert (found.radius, found.made_up, found.of_kind("near")) == (1e-3, 0, [])
    assert len(found.groups) == 3
    everything = find_duplicates(images, thumbnails, radius=2)
    assert len(everything.of_kind("near")[0].images) == 18 - 4
    assert everything.nearest_other is None
    for radius in (0, -1, float("nan"), 3):
        with pytest.raises(ConfigError, match="wanted a distance above 0 and at most 2"):
            find_duplicates(images, thumbnails, radius=radius)


def test_turned_images_have_their_upright_size(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    photograph(0).save(tmp_path / "turned.jpg", exif=exif)
    shutil.copy(tmp_path / "turned.jpg", tmp_path / "copy.jpg")
    found = find_duplicates(embedded(tmp_path), thumbnails)
    assert [(image.width, image.height) for image in found.groups[0].images] == [(160, 213)] * 2


def test_files_that_are_gone_are_compared_by_their_vectors(tmp_path):
    folder = write_kinds(tmp_path / "images")
    images = embedded(folder)
    (folder / "0.png").unlink()
    (folder / "1.png").write_bytes(b"no image")
    found = find_duplicates(images, thumbnails)
    gone = [image for group in found.of_kind("near") for image in group.images if image.path == "0.png"]
    assert (gone[0].width, gone[0].height, gone[0].bytes) == (None, None, None)
    shutil.rmtree(folder)
    assert find_duplicates(images, thumbnails).made_up == 0


def test_vectors_are_compared_with_their_nearest_others():
    points = torch.nn.functional.normalize(torch.randn(100, 16, generator=torch.Generator().manual_seed(0)))
    points[10] = points[20]
    points[30] = torch.nn.functional.normalize(points[40] + 0.1 * points[50], dim=0)
    vectors = Embedded("vectors.npz", [f"id {number}" for number in range(100)], points)
    found = find_duplicates(vectors, None)
    distances = torch.cdist(points.double(), points.double())
    distances[distances < 1e-3] = torch.inf
    assert found.radius == pytest.approx(distances.amin(1).median().item() / 2, rel=1e-4)
    assert found.made_up == 0
    assert sorted(paths_of(found.groups)) == [["id 10", "id 20"], ["id 30", "id 40"]]
    assert [group.kind for group in found.groups] == ["same", "near"]
    assert found.groups[0].images[0].bytes is None


def test_collections_of_one_vector_or_of_equal_ones_have_a_radius():
    one = Embedded("vectors.npz", ["a"], torch.eye(4)[:1])
    assert find_duplicates(one, None).groups == []
    equal = Embedded("vectors.npz", ["a", "b"], torch.eye(4)[[0, 0]])
    assert paths_of(find_duplicates(equal, None).groups) == [["a", "b"]]


def test_json_has_every_group(tmp_path):
    told = find_duplicates(embedded(write_kinds(tmp_path / "images")), thumbnails).as_json()
    assert {*told} == {"radius", "nearest_other", "made_up_copies", "groups"}
    exact = told["groups"][0]
    assert {*exact} == {"kind", "largest", "images", "pairs"}
    assert {*exact["images"][0]} == {"path", "distance", "bytes", "width", "height"}
    assert np.isfinite(told["radius"])
