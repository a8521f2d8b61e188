"""Copies among images: equal files, equal pixels, near and turned copies."""

import io
import os
import shutil

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

from pml_ext.errors import ConfigError
from pml_ext_copies import ImageFiles, find_duplicates, find_equal_vectors
from pml_ext_copies.choices import keep_chosen
from pml_ext_copies.pages import write_page
from pml_ext_train.data import list_folder

from ..search.photographs import photograph, write_copies
from ..train.data.made_up import write_deep_png


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


@pytest.mark.nightly
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
    assert len(find_duplicates(images, radius=2).of_kind("near")[0].images) == 18 - 4
    for radius in (0, -1, float("nan"), 3):
        with pytest.raises(ConfigError, match="wanted a distance above 0 and at most 2"):
            find_duplicates(images, radius=radius)


def test_only_the_requested_kinds_are_found(tmp_path):
    images = files_of(write_kinds(tmp_path / "images"))
    read = []
    assert [group.kind for group in find_duplicates(images, kinds=["exact"], listener=read.append).groups] == ["exact"]
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
    new.mkdir()
    old.mkdir()
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


def found_in(folder, **options):
    names = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*.*"))
    return find_duplicates(ImageFiles(folder, names), radius=0.3, **options)


def with_hole(image, side):
    image = image.convert("RGBA")
    ImageDraw.Draw(image).rectangle((0, 0, side, side), (255, 255, 255, 0))
    return image, {}


def pages(*numbers, **options):
    first, *others = [photograph(number) for number in numbers]
    return first, {"save_all": bool(others), "append_images": others, **options}


def deep(low, kind=np.uint16):
    """Gray values with a photograph in their upper bits."""
    return Image.fromarray(np.asarray(photograph(0).convert("L")).astype(kind) * 256 + low), {}


WHITE = Image.new("RGB", (64, 64), "white")
# Two images that were read as equal, the ending of their files, and what differs, "" for pixels alone.
PAIRS = {
    "transparency of icons": (with_hole(WHITE, 30), with_hole(WHITE, 31), "png", "transparency"),
    "transparency of one": (with_hole(photograph(0), 3), pages(0), "png", "transparency"),
    "pages": (pages(0, 1), pages(0), "tif", "frames"),
    "equal first pages": (pages(0, 1), pages(0, 2), "tif", "frames"),
    "animated GIF": (pages(0, 1), pages(0, 2), "gif", "frames"),
    "still and GIF": (pages(0, 1), pages(0), "gif", "frames"),
    "still and APNG": (pages(0, 1), pages(0), "png", "frames"),
    "animated WebP": (pages(0, 1, lossless=True), pages(0, 2, lossless=True), "webp", "frames"),
    "speed": (pages(0, 1, duration=50), pages(0, 1), "png", "frames"),
    "depth": (deep(0), (photograph(0).convert("L"), {}), "png", "depth"),
    "low bits": (deep(1), deep(2), "png", ""),
    "32 bits": (deep(1, np.int32), deep(1), "tif", "depth"),
    "color profile": (pages(0, icc_profile=b"P3"), pages(0), "png", "color profile"),
}


@pytest.mark.parametrize("what", PAIRS)
def test_what_reading_drops_makes_images_near_at_most(tmp_path, what):
    *images, ending, differs = PAIRS[what]
    for number, (image, options) in enumerate(images):
        image.save(tmp_path / f"{number}.{ending}", **options)
    (group,) = found_in(tmp_path).groups
    assert group.about(group.images[1]) == ("near, different " + differs if differs else "near")


def test_colors_that_pillow_cuts_are_near_at_most(tmp_path):
    """Of their 16 bits it reads 8."""
    for low in range(2):
        write_deep_png(tmp_path / f"{low}.png", np.asarray(photograph(0)).astype(np.uint16) * 256 + low)
    assert found_in(tmp_path).as_json()["groups"][0]["images"][1]["differs"] == ["depth"]


@pytest.mark.parametrize(
    ("kind", "options"),
    [("TIFF", {}), ("BMP", {}), ("WEBP", {"lossless": True}), ("PNG", {"icc_profile": b"... sRGB IEC61966-2.1"})],
)
def test_lossless_formats_of_one_picture_are_the_same(tmp_path, kind, options):
    photograph(0).convert("RGBA").convert("RGB").save(tmp_path / "one.png")
    photograph(0).save(tmp_path / f"other.{kind.lower()}", kind, **options)
    assert [group.kind for group in found_in(tmp_path).groups] == ["same"]


def test_all_frames_are_compared_across_formats(tmp_path):
    image, options = pages(0, 1, duration=50, lossless=True)
    for ending in ("png", "webp"):
        image.save(tmp_path / f"moves.{ending}", **options)
    assert [group.kind for group in found_in(tmp_path).groups] == ["same"]


def test_dark_pictures_of_16_bits_are_different(tmp_path):
    """All values are below 256: the upper 8 of 16 bits would be 0."""
    for number in range(2):
        Image.fromarray(np.asarray(photograph(number).convert("L")).astype(np.uint16)).save(tmp_path / f"{number}.png")
    assert found_in(tmp_path).groups == []


def decoded(image):
    file = io.BytesIO()
    image.save(file, "JPEG")
    return Image.open(file)


BRIGHTER = ImageEnhance.Brightness(photograph(0)).enhance(1.2)
# Files with the image, its age in seconds, and options; the first is kept.
ORIGINALS = {
    "a JPEG, and a PNG of its pixels": [("b.jpg", photograph(0), 1, {}), ("a.png", decoded(photograph(0)), 2, {})],
    "the smaller lossless file": [("b.png", photograph(0), 1, {}), ("a.bmp", photograph(0), 2, {})],
    "the older of equal JPEGs": [("b.jpg", photograph(0), 2, {}), ("a.jpg", photograph(0), 1, {"comment": "x" * 999})],
    "not one that was compressed again": [
        ("b.jpg", photograph(0), 2, {"quality": 60}),
        ("a.jpg", photograph(0), 1, {}),
    ],
    "not a brighter one": [("b.jpg", photograph(0), 2, {}), ("a.png", BRIGHTER, 1, {})],
    "more pixels": [("b.png", photograph(0, 320), 1, {}), ("a.png", photograph(0), 2, {})],
    "more frames": [("b.png", photograph(0), 1, pages(0, 1)[1]), ("a.png", photograph(0), 2, {})],
    "the older of equal files": [("b.png", photograph(0), 2, {}), ("a.png", photograph(0), 1, {})],
    "none of a bin": [("b.jpg", photograph(0), 1, {}), ("#recycle/a.png", photograph(0, 320), 2, {})],
}


def write_original(place, what):
    for name, image, age, options in ORIGINALS[what]:
        (place / name).parent.mkdir(exist_ok=True)
        image.save(place / name, **options)
        os.utime(place / name, (9 - age, 9 - age))
    return ORIGINALS[what][0][0]


@pytest.mark.parametrize("what", ORIGINALS)
def test_the_original_is_kept_by_default(tmp_path, what):
    kept = write_original(tmp_path, what)
    assert [group.keep.path for group in found_in(tmp_path).groups] == [kept]


@pytest.mark.parametrize("keep", ["least-compressed", "oldest", "#recycle"])
def test_no_rule_keeps_files_of_a_bin(tmp_path, keep):
    kept = write_original(tmp_path, "none of a bin")
    assert found_in(tmp_path, keep=keep).groups[0].keep.path == kept


# How a copy is made, by what the search says of it; Pillow turns counterclockwise.
TURNS = {
    ("mirrored",): Image.Transpose.FLIP_LEFT_RIGHT,
    ("turned 90 degrees",): Image.Transpose.ROTATE_270,
    ("turned 180 degrees",): Image.Transpose.ROTATE_180,
    ("turned 270 degrees",): Image.Transpose.ROTATE_90,
    ("mirrored", "turned 90 degrees"): Image.Transpose.TRANSVERSE,
    ("mirrored", "turned 180 degrees"): Image.Transpose.FLIP_TOP_BOTTOM,
    ("mirrored", "turned 270 degrees"): Image.Transpose.TRANSPOSE,
}


def captioned(image, is_top):
    band = Image.new("RGB", (image.width, image.height // 8), "black")
    ImageDraw.Draw(band).text((10, band.height // 3), "seen in the harbor", "white")
    image.paste(band, (0, 0 if is_top else image.height - band.height))
    return image


@pytest.fixture
def folder(tmp_path):
    """Twelve photographs; smaller copies of the first ones, turned, and of two more with captions."""
    place = tmp_path / "photos"
    place.mkdir()
    for number in range(12):
        photograph(number, 320).save(place / f"{number:02d}.png")
    for number, turn in enumerate(TURNS.values()):
        photograph(number).transpose(turn).save(place / f"{number:02d}-copy.jpg", quality=70)
    for number in (7, 8):
        captioned(photograph(number, 300), is_top=number == 7).save(place / f"{number:02d}-copy.jpg")
    return place


def changes_of(found):
    return {group.keep.path: [image.changes for image in group.others] for group in found.groups}


WANTED = {f"{number:02d}.png": [changes] for number, changes in enumerate([*TURNS, ("captioned",), ("captioned",)])}


@pytest.mark.nightly
def test_turned_and_captioned_copies_are_named(folder):
    assert find_duplicates(files_of(folder)).groups == []
    found = find_duplicates(files_of(folder), turned=True)
    assert changes_of(found) == WANTED
    assert all(group.images[1].distance <= found.radius for group in found.groups)
    differs = [group["images"][1]["differs"] for group in found.as_json()["groups"]]
    assert sorted(map(tuple, differs)) == sorted(changes for (changes,) in WANTED.values())


def test_turned_copies_of_another_folder_are_found(folder, tmp_path):
    new = tmp_path / "new"
    new.mkdir()
    for copy in folder.glob("*-copy.jpg"):
        copy.rename(new / copy.name)
    photograph(20).save(new / "one.png")
    ImageOps.mirror(photograph(20)).save(new / "mirrored.png")  # in one folder, which are not compared
    found = find_duplicates(files_of(new, folder), turned=True)
    assert changes_of(found) == {str(folder / name): changes for name, changes in WANTED.items()}


@pytest.mark.nightly
def test_neighbors_by_embedding_are_confirmed(folder):
    images = files_of(folder)
    originals = {name[:2]: number for number, name in enumerate(images.names) if name.endswith("png")}
    points = torch.eye(len(images))[[originals[name[:2]] for name in images.names]]
    assert changes_of(find_duplicates(images, embeddings=points)) == WANTED
    alone = torch.eye(len(images))  # whose nearest others are any eight
    assert {*changes_of(find_duplicates(images, embeddings=alone))} <= {*WANTED}


def scene(rng, is_symmetric):
    """A photograph of one place with things in its lower half, in changing light."""
    image = photograph(0, 240)
    if is_symmetric:
        image = Image.blend(image, ImageOps.mirror(image), 0.5)
    for _ in range(2):
        thing = photograph(int(rng.integers(100, 200)), 80)
        image.paste(thing, (int(rng.integers(-40, 260)), int(rng.integers(120, 220))))
    return ImageEnhance.Brightness(image).enhance(rng.uniform(0.8, 1.2))


@pytest.mark.parametrize("is_symmetric", [False, True])
def test_photographs_of_one_place_differ(tmp_path, is_symmetric):
    rng = np.random.default_rng(0)
    for number in range(15):
        scene(rng, is_symmetric).save(tmp_path / f"{number}.png")
    assert find_duplicates(files_of(tmp_path), 0.15, turned=True) == find_duplicates(files_of(tmp_path), 0.15)


def test_plain_and_symmetric_images_are_not_turned(tmp_path):
    ramp = Image.linear_gradient("L")
    for number, turn in enumerate((Image.Transpose.ROTATE_90, Image.Transpose.ROTATE_270, Image.Transpose.ROTATE_180)):
        ramp.transpose(turn).save(tmp_path / f"ramp-{number}.png")
    for number in range(3):
        page = Image.new("L", (400, 300), "white")
        ImageDraw.Draw(page).text((20, 100 + 40 * number), "lines of a screenshot " * number, "black")
        captioned(page, is_top=number == 1).save(tmp_path / f"page-{number}.png")
    symmetric = Image.blend(photograph(1), ImageOps.mirror(photograph(1)), 0.47)  # nearly, so that one turn is nearer
    symmetric.save(tmp_path / "one.png")
    other = ImageOps.mirror(ImageEnhance.Brightness(symmetric).enhance(1.1))
    other.paste(photograph(9, 8), (0, 0))
    other.save(tmp_path / "two.png")
    found = find_duplicates(files_of(tmp_path), 0.2, turned=True)
    assert found == find_duplicates(files_of(tmp_path), 0.2)
    assert {"one.png", "two.png"} in [{image.path for image in group.images} for group in found.groups]


def test_another_kept_image_turns_the_others(tmp_path):
    photograph(0, 320).save(tmp_path / "large.png")
    photograph(0).save(tmp_path / "small.png")
    photograph(0).transpose(Image.Transpose.ROTATE_270).save(tmp_path / "turned.png")
    found = find_duplicates(files_of(tmp_path), 0.2, turned=True)
    assert changes_of(found) == {"large.png": [(), ("turned 90 degrees",)]}
    chosen = keep_chosen(found, {0: ["turned.png"]})
    assert changes_of(chosen) == {"turned.png": [("turned 270 degrees",)] * 2}
    assert max(image.distance for image in chosen.groups[0].images) <= 0.2
    write_page(chosen, tmp_path / "page.html", "", "")
    assert (tmp_path / "page.html").read_text().count("near, turned 270 degrees") == 2


def test_turned_copies_are_shown_and_moved(command, folder, tmp_path):
    done = command("duplicates", folder, "--turned", "--move", tmp_path / "aside")
    assert "near, mirrored, turned 180 degrees" in done.stdout, done.stderr
    assert sorted(file.name for file in folder.glob("[0-9]*")) == [f"{number:02d}.png" for number in range(12)]


def test_the_neighbors_of_a_run_are_compared(command, make, folder):
    run = make()
    done = command("duplicates", run.folder, "--store", run.index(folder).place, "--by", "embeddings")
    assert "near, mirrored" in done.stdout, done.stderr
