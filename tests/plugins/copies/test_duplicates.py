"""Copies among images: exact ones, those of the same pixels, and near ones."""

import os
import shutil

import pytest
import torch
from PIL import Image

from pml_ext.errors import ConfigError
from pml_ext_copies.duplicates import find_duplicates, find_equal_vectors
from pml_ext_copies.image_files import ImageFiles
from pml_ext_train.data import list_folder

from ..search.photographs import photograph, write_copies


def files_of(folder, old=None):
    compared = None if old is None else (old, list_folder(old).names)
    return ImageFiles(folder, list_folder(folder).names, compared)


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
    found = find_duplicates(files_of(folder))
    ((kept, *others),) = paths_of(found.of_kind("exact"))
    assert (kept, {*others}) == ("0.png", {"exact $1_3.png", "sub/exact.png"})
    assert sorted(paths_of(found.of_kind("same"))) == [["0.png", "same.bmp"], ["1.png", "same.tif"]]
    assert sorted(paths_of(found.of_kind("near"))) == [["2.png", "small.jpg"], ["near.jpg", "0.png"]]
    assert found.images == 18
    sizes = {file.relative_to(folder).as_posix(): file.stat().st_size for file in folder.rglob("*.*")}
    spare = ("exact $1_3.png", "sub/exact.png", "0.png", "same.tif", "small.jpg", "same.bmp")
    assert found.space == sum(sizes[path] for path in spare)
    shown = found.as_json()
    assert {*shown} == {"groups", "pairs", "radius", "nearest", "nearest_other", "made_up_copies", "images", "space"}
    assert [*shown["groups"][0].items()][:2] == [("kind", "exact"), ("keep", "0.png")]
    assert {*shown["groups"][0]["images"][0]} == {"path", "distance", "bytes", "width", "height", "differs"}
    assert len(shown["pairs"]) == sum(len(group.images) - 1 for group in found.groups)


def test_changes_of_photographs_are_found_by_the_default(tmp_path):
    for number in range(10):
        write_copies(tmp_path / "images", number)
    found = find_duplicates(files_of(tmp_path / "images"))
    groups = paths_of(found.groups)
    assert sorted(len(group) for group in groups) == [8] * 10
    assert all(len({path[:2] for path in group}) == 1 for group in groups)
    assert all(group.keep.path.endswith("-doubled.png") for group in found.groups)
    assert 0 < found.radius < found.nearest < found.nearest_other
    for group in found.groups:
        distances = [image.distance for image in group.images]
        assert distances[0] == 0 < distances[1] == sorted(distances)[1]
        assert len(group.pairs) == 7
        assert max(distance for _, _, distance in group.pairs) <= found.radius
    assert find_duplicates(files_of(tmp_path / "images")) == found


def test_a_radius_that_is_given_is_taken(tmp_path):
    images = files_of(write_kinds(tmp_path / "images"))
    found = find_duplicates(images, radius=1e-5)
    assert (found.radius, found.made_up, found.of_kind("near")) == (1e-5, 0, [])
    everything = find_duplicates(images, radius=2)
    assert len(everything.of_kind("near")[0].images) == 18 - 4
    for radius in (0, -1, float("nan"), 3):
        with pytest.raises(ConfigError, match="wanted a distance above 0 and at most 2"):
            find_duplicates(images, radius=radius)


def test_only_the_requested_kinds_are_found(tmp_path):
    images = files_of(write_kinds(tmp_path / "images"))
    read = []
    found = find_duplicates(images, kinds=["exact"], listener=read.append)
    assert [group.kind for group in found.groups] == ["exact"]
    assert read == []
    assert {group.kind for group in find_duplicates(images, kinds=["near"]).groups} == {"near"}


@pytest.mark.parametrize(
    ("keep", "kept"),
    [("most-pixels", "big.jpg"), ("least-compressed", "small.bmp"), ("oldest", "sub/old.jpg"), ("sub", "sub/old.jpg")],
)
def test_the_rule_says_which_copy_is_kept(tmp_path, keep, kept):
    (tmp_path / "sub").mkdir()
    photograph(0, 320).save(tmp_path / "big.jpg", quality=60)
    photograph(0, 80).save(tmp_path / "small.bmp")
    photograph(0, 100).save(tmp_path / "sub" / "old.jpg", quality=70)
    os.utime(tmp_path / "sub" / "old.jpg", (1000, 1000))
    photograph(5).save(tmp_path / "another.png")
    (group,) = find_duplicates(files_of(tmp_path), keep=keep, radius=0.3).groups
    assert group.keep.path == kept
    (tmp_path / "sub").rename(tmp_path / "su\u0308b")
    (group,) = find_duplicates(files_of(tmp_path), keep="s\u00fcb", radius=0.3).groups
    assert group.keep.path == "su\u0308b/old.jpg"
    with pytest.raises(ConfigError, match="--keep su: no image is below 'su'"):
        find_duplicates(files_of(tmp_path), keep="su")


def test_two_folders_are_compared_with_each_other_alone(tmp_path):
    new, old = tmp_path / "new", tmp_path / "old"
    for place in (new, old):
        place.mkdir()
    for number in range(6):
        photograph(number).save(old / f"{number}.png")
    photograph(0, 320).save(new / "larger.jpg")
    shutil.copy(old / "1.png", new / "1.png")
    photograph(2).save(new / "same.bmp")
    for name in ("8.png", "eight.png"):  # copies of each other, not of an old one
        photograph(8).save(new / name)
    shutil.copy(old / "3.png", old / "again.png")
    found = find_duplicates(files_of(new, old))
    assert [(group.kind, paths) for group, paths in zip(found.groups, paths_of(found.groups), strict=True)] == [
        ("exact", [str(old / "1.png"), str(new / "1.png")]),
        ("same", [str(old / "2.png"), str(new / "same.bmp")]),
        ("near", [str(old / "0.png"), str(new / "larger.jpg")]),
    ]
    assert found.images == 12


def test_names_of_one_file_are_one_image(tmp_path):
    photograph(0).save(tmp_path / "a.png")
    photograph(1).save(tmp_path / "b.png")
    os.link(tmp_path / "a.png", tmp_path / "hard.png")
    os.symlink("b.png", tmp_path / "0-symbolic.png")
    found = find_duplicates(files_of(tmp_path))
    assert (found.groups, found.images) == ([], 2)


def test_turned_images_have_their_upright_size(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    photograph(0).save(tmp_path / "turned.jpg", exif=exif)
    shutil.copy(tmp_path / "turned.jpg", tmp_path / "copy.jpg")
    found = find_duplicates(files_of(tmp_path))
    assert [(image.width, image.height) for image in found.groups[0].images] == [(160, 213)] * 2


def test_files_that_are_gone_or_broken_are_named(tmp_path):
    folder = write_kinds(tmp_path / "images")
    names = list_folder(folder).names
    (folder / "5.png").unlink()
    (folder / "6.png").write_bytes(b"no image")
    found = find_duplicates(ImageFiles(folder, names))
    assert {*found.skipped} == {"5.png", "6.png"}
    assert len(found.groups) == 5
    shutil.rmtree(folder)
    assert find_duplicates(ImageFiles(folder, names)).groups == []


def test_one_image_has_no_copies(tmp_path):
    photograph(0).save(tmp_path / "one.png")
    assert find_duplicates(files_of(tmp_path)).groups == []


def test_vectors_are_compared_with_their_nearest_others():
    points = torch.nn.functional.normalize(torch.randn(100, 16, generator=torch.Generator().manual_seed(0)))
    points[10] = points[20]
    points[30] = torch.nn.functional.normalize(points[40] + 0.1 * points[50], dim=0)
    found = find_equal_vectors([f"id {number}" for number in range(100)], points)
    distances = torch.cdist(points.double(), points.double())
    distances[distances < 1e-3] = torch.inf
    assert found.radius == pytest.approx(distances.amin(1).median().item() / 2, rel=1e-4)
    assert sorted(paths_of(found.groups)) == [["id 10", "id 20"], ["id 30", "id 40"]]
    assert [group.kind for group in found.groups] == ["same", "near"]
    assert found.groups[1].images[1].distance == pytest.approx((points[30] - points[40]).norm().item(), abs=1e-6)
    assert (found.groups[0].images[0].bytes, found.space) == (None, 0)


def test_tiny_collections_of_vectors_have_a_radius():
    assert find_equal_vectors(["a"], torch.eye(4)[:1]).groups == []
    assert paths_of(find_equal_vectors(["a", "b"], torch.eye(4)[[0, 0]]).groups) == [["a", "b"]]
