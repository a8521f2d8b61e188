"""What makes two images the same picture, and which copy is kept."""

import os

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageEnhance

from pml_ext_search.duplicates import find_duplicates
from pml_ext_search.image_files import ImageFiles

from ...data.made_up import write_deep_png
from .photographs import photograph


def found_in(folder, **options):
    names = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*.*"))
    return find_duplicates(ImageFiles(folder, names), radius=0.3, **options)


def with_alpha(corner):
    image = photograph(0).convert("RGBA")
    ImageDraw.Draw(image).rectangle((0, 0, corner, corner), (0, 0, 0, 0))
    return image


def write_pages(path, *numbers, **options):
    first, *others = [photograph(number) for number in numbers]
    first.save(path, save_all=bool(others), append_images=others, **options)


def write_deep(path, low, kind=np.uint16):
    pixels = np.asarray(photograph(0).convert("L")).astype(kind) * 256 + low
    Image.fromarray(pixels).save(path)


def write_deep_colors(path, low):
    write_deep_png(path, np.asarray(photograph(0)).astype(np.uint16) * 256 + low)


def write_profiled(path, profile):
    photograph(0).save(path, icc_profile=profile)


PAIRS = {
    "transparency": (lambda path: with_alpha(30).save(path), lambda path: with_alpha(31).save(path), "png"),
    "transparency of one": (lambda path: with_alpha(3).save(path), lambda path: photograph(0).save(path), "png"),
    "pages": (lambda path: write_pages(path, 0, 1), lambda path: write_pages(path, 0), "tif"),
    "equal first pages": (lambda path: write_pages(path, 0, 1), lambda path: write_pages(path, 0, 2), "tif"),
    "animated GIF": (lambda path: write_pages(path, 0, 1), lambda path: write_pages(path, 0, 2), "gif"),
    "still and GIF": (lambda path: write_pages(path, 0, 1), lambda path: write_pages(path, 0), "gif"),
    "still and APNG": (lambda path: write_pages(path, 0, 1), lambda path: write_pages(path, 0), "png"),
    "animated WebP": (
        lambda path: write_pages(path, 0, 1, lossless=True),
        lambda path: write_pages(path, 0, 2, lossless=True),
        "webp",
    ),
    "speed": (lambda path: write_pages(path, 0, 1, duration=50), lambda path: write_pages(path, 0, 1), "png"),
    "depth": (lambda path: write_deep(path, 0), lambda path: photograph(0).convert("L").save(path), "png"),
    "low bits": (lambda path: write_deep(path, 1), lambda path: write_deep(path, 2), "png"),
    "32 bits": (lambda path: write_deep(path, 1, np.int32), lambda path: write_deep(path, 1), "tif"),
    "bits that Pillow skips": (
        lambda path: write_deep_colors(path, 1),
        lambda path: write_deep_colors(path, 2),
        "png",
    ),
    "color profile": (lambda path: write_profiled(path, b"P3"), lambda path: write_profiled(path, None), "png"),
}
DIFFERING = {
    "transparency": "transparency",
    "transparency of one": "transparency",
    "pages": "frames",
    "still and GIF": "frames",
    "still and APNG": "frames",
    "depth": "depth",
    "32 bits": "depth",
    "bits that Pillow skips": "depth",
    "color profile": "color profile",
}


@pytest.mark.parametrize("what", PAIRS)
def test_what_reading_drops_makes_images_near_at_most(tmp_path, what):
    write_one, write_other, ending = PAIRS[what]
    write_one(tmp_path / f"one.{ending}")
    write_other(tmp_path / f"other.{ending}")
    (group,) = found_in(tmp_path).groups
    assert group.kind == "near"
    wanted = [DIFFERING[what]] if what in DIFFERING else []
    assert found_in(tmp_path).as_json()["groups"][0]["images"][1]["differs"] == wanted
    assert group.about(group.images[1]) == ", other ".join(["near", *wanted])


@pytest.mark.parametrize(
    ("kind", "options"),
    [("TIFF", {}), ("BMP", {}), ("WEBP", {"lossless": True}), ("PNG", {"icc_profile": b"... sRGB IEC61966-2.1"})],
)
def test_lossless_formats_of_one_picture_are_the_same(tmp_path, kind, options):
    photograph(0).convert("RGBA").convert("RGB").save(tmp_path / "one.png")
    photograph(0).save(tmp_path / f"other.{kind.lower()}", kind, **options)
    assert [group.kind for group in found_in(tmp_path).groups] == ["same"]


def test_all_frames_are_compared_across_formats(tmp_path):
    write_pages(tmp_path / "moves.png", 0, 1, duration=50)
    write_pages(tmp_path / "moves.webp", 0, 1, duration=50, lossless=True)
    assert [group.kind for group in found_in(tmp_path).groups] == ["same"]


def test_dark_pictures_of_16_bits_are_different(tmp_path):
    """All of their values are below 256, of which reading 8 of 16 bits leaves nothing."""
    for number in range(2):
        Image.fromarray(np.asarray(photograph(number).convert("L")).astype(np.uint16)).save(tmp_path / f"{number}.png")
    assert found_in(tmp_path).groups == []


def save_at(path, image, time, **options):
    path.parent.mkdir(exist_ok=True)
    image.save(path, **options)
    os.utime(path, (time, time))


def write_decoded_jpeg(place):
    save_at(place / "original.jpg", photograph(0), 2000)
    save_at(place / "decoded.png", Image.open(place / "original.jpg"), 1000)


def write_lossless(place):
    save_at(place / "original.png", photograph(0), 2000)
    save_at(place / "larger.bmp", photograph(0), 1000)


def write_equal_jpegs(place):
    save_at(place / "original.jpg", photograph(0), 1000)
    save_at(place / "optimized.jpg", photograph(0), 2000, optimize=True, comment="x" * 9999)


def write_recompressed(place):
    save_at(place / "original.jpg", photograph(0), 1000, quality=60)
    save_at(place / "again.jpg", photograph(0), 2000, quality=95)


def write_brightened(place):
    save_at(place / "original.jpg", photograph(0), 1000)
    save_at(place / "brighter.png", ImageEnhance.Brightness(photograph(0)).enhance(1.2), 2000)


def write_enlarged(place):
    save_at(place / "original.png", photograph(0, 320), 2000)
    save_at(place / "smaller.png", photograph(0), 1000)


def write_animated(place):
    write_pages(place / "original.png", 0, 1)
    save_at(place / "still.png", photograph(0), 1000)


def write_binned(place):
    save_at(place / "#recycle" / "larger.png", photograph(0, 320), 1000)
    save_at(place / "original.jpg", photograph(0), 2000)


def write_exact(place):
    save_at(place / "a copy.png", photograph(0), 2000)
    save_at(place / "original.png", photograph(0), 1000)


@pytest.mark.parametrize(
    "write",
    [
        write_decoded_jpeg,
        write_lossless,
        write_equal_jpegs,
        write_recompressed,
        write_brightened,
        write_enlarged,
        write_animated,
        write_binned,
        write_exact,
    ],
)
def test_the_original_is_kept_by_default(tmp_path, write):
    write(tmp_path)
    (group,) = found_in(tmp_path).groups
    assert "original" in group.keep.path


def test_a_file_in_a_bin_is_kept_by_no_rule(tmp_path):
    write_binned(tmp_path)
    for keep in ("most-pixels", "least-compressed", "oldest", "#recycle"):
        assert found_in(tmp_path, keep=keep).groups[0].keep.path == "original.jpg"
