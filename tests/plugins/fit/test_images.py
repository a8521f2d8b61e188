"""What fits a folder of images: split, size, batches, cache."""

import shutil
from pathlib import Path

import pytest
from PIL import Image

from pml_ext.errors import DataError
from pml_ext.recipe import load_recipe, overrides_of
from pml_ext_fit import candidates
from pml_ext_fit.images import describe_images

from ...overrides import typed


def recipe_with(settings, *overrides, name=candidates.SMALL):
    return load_recipe(name, [*overrides_of(settings), *typed(overrides)])


def test_unreadable_files_are_skipped_unless_the_user_says_otherwise(photos, tmp_path):
    place = shutil.copytree(photos, tmp_path / "photos")
    next(place.rglob("*.png")).write_bytes(b"no image")
    given = ["data.split=image", "data.image_size=16"]
    settings = describe_images(place, typed(given)).settings_of(candidates.SMALL)
    assert recipe_with(settings, *given).data.unreadable == "skip"
    assert recipe_with(settings, "data.unreadable=stop").data.unreadable == "stop"


@pytest.mark.parametrize(
    ("classes", "images", "options", "wanted", "told"),
    [
        (24, 6, [], ("class", 5, 60), "12 classes to train, 12 others"),
        (6, 8, [], ("image", 4, 24), "24 images to train"),
        (8, 3, [], ("class", 3, 12), "4 classes to train"),
        (6, 8, ["data.split=class"], (None, 8, 24), "3 classes to train, 3 others"),
        (2, 40, [], ("image", 16, 32), "40 images to train"),
    ],
)
def test_settings_fit_the_folder(tmp_path, classes, images, options, wanted, told):
    for label in range(classes):
        (tmp_path / f"class{label:02d}").mkdir()
        for number in range(images):
            Image.new("RGB", (40, 50), (9 * label, number, 0)).save(tmp_path / f"class{label:02d}" / f"{number}.png")
    described = describe_images(tmp_path, typed(options))
    assert describe_images(Path(f"folder:{tmp_path}"), typed(options)) == described
    settings = described.settings_of(candidates.SMALL)
    lines = [*described.description, described.last_line]
    assert settings["data.image_size"] == 32
    assert tuple(map(settings.get, ("data.split", "sampler.m", "sampler.batch_size"))) == wanted
    assert len(lines) == 3
    assert f"{classes} classes of {images} images, 40 x 50" in lines[0]
    assert told in " ".join(lines)
    recipe_with(settings, *options)
    if images == 3:
        for label in range(2, classes):
            shutil.rmtree(tmp_path / f"class{label:02d}")
        with pytest.raises(DataError, match="2 classes, most with fewer than 4 images; wanted two"):
            describe_images(tmp_path)


def test_a_chosen_size_is_that_of_the_pretrained_network_too(photos):
    sizes = []
    for options in ([], ["data.image_size=96"]):
        settings = describe_images(photos, typed(options)).settings_of(candidates.PRETRAINED)
        sizes.append((settings["data.images.crop"], settings["data.images.resize"]))
    assert sizes == [(224, 224), (96, 96)]


def test_few_bytes_of_images_are_kept_in_memory(photos, monkeypatch):
    """144 squares: at 48 pixels 1 MB, at 96 pixels and as the recipe has them, at 224, more."""
    monkeypatch.setattr("pml_ext_fit.images.IN_MEMORY", 2_000_000)
    assert describe_images(photos).data["data.cache"] == "memory"
    assert "data.cache" not in describe_images(photos, typed(["data.image_size=96"])).data
    assert "data.cache" not in describe_images(photos).settings_of(candidates.PRETRAINED)
    monkeypatch.undo()
    assert describe_images(photos).settings_of(candidates.PRETRAINED)["data.cache"] == "memory"


@pytest.mark.parametrize("override", ["sampler.name=shuffle", "sampler={name='shuffle', batch_size=16}"])
def test_a_sampler_of_the_user_has_no_fitting_batches(photos, override):
    settings = describe_images(photos, typed([override])).settings_of(candidates.SMALL)
    chosen = recipe_with(settings, override)
    assert (chosen.sampler.name, chosen.sampler.settings) == ("shuffle", {})


def test_the_recipes_own_sampler_keeps_fitting_batches_if_it_is_named(photos):
    found = describe_images(photos, typed(["sampler.name=pml/m-per-class"]))
    assert found.settings_of(candidates.SMALL) == describe_images(photos).settings_of(candidates.SMALL)


def test_a_table_of_the_data_is_followed_as_its_keys_are(photos):
    by_key = describe_images(photos, typed(["data.split=image", "data.image_size=24"]))
    assert describe_images(photos, typed(["data={split='image', image_size=24}"])) == by_key
    assert by_key.chosen_size == 24


def test_what_is_not_there_is_one_line(tmp_path):
    with pytest.raises(DataError, match=r"none.csv: no such folder or file; wanted a folder of images, a .csv table"):
        describe_images(Path(f"table:{tmp_path}/none.csv"))
