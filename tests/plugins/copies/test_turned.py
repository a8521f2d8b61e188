"""Mirrored, turned and captioned copies."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

from pml_ext_copies.choices import keep_chosen
from pml_ext_copies.duplicates import find_duplicates
from pml_ext_copies.pages import write_page

from ..search.photographs import photograph
from .test_duplicates import files_of

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
    image = image.copy()
    height = image.height // 8
    top = 0 if is_top else image.height - height
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, top, image.width, top + height), "black")
    draw.text((10, top + height // 3), "seen in the harbor", "white")
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


def test_turned_copies_move_and_return(command, folder, tmp_path):
    before = sorted(file.name for file in folder.iterdir())
    done = command("duplicates", folder, "--turned", "--move", tmp_path / "aside")
    assert done.returncode == 0, done.stderr
    assert "near, mirrored, turned 180 degrees" in done.stdout
    assert sorted(file.name for file in folder.glob("[0-9]*")) == [f"{number:02d}.png" for number in range(12)]
    assert command("duplicates", folder, "--undo", tmp_path / "aside").returncode == 0
    assert sorted(file.name for file in folder.glob("[0-9]*")) == before


def test_the_neighbors_of_a_run_are_compared(command, make, folder):
    run = make()
    store = run.index(folder).place
    done = command("duplicates", run.folder, "--store", store, "--by", "embeddings")
    assert done.returncode == 0, done.stderr
    assert "near, mirrored" in done.stdout
