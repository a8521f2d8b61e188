"""What makes two images the same picture, and which copy is kept."""

import io
import os

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageEnhance

from pml_ext_copies.duplicates import find_duplicates
from pml_ext_copies.image_files import ImageFiles

from ..search.photographs import photograph
from ..train.data.made_up import write_deep_png


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
    """Gray values of which the upper bits are those of a photograph."""
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
    """All of their values are below 256, of which reading 8 of 16 bits leaves nothing."""
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
