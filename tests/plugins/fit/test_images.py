"""What fits a folder of images: split, size, batches, cache."""

import shutil
import sys
from pathlib import Path

import pytest
from PIL import Image

from pml_ext.errors import DataError
from pml_ext_fit import candidates
from pml_ext_fit.framing import Framing
from pml_ext_fit.images import describe_images, is_table
from pml_ext_fit.trunk import PRETRAINED
from pml_ext_train.recipe import build_dataset, load_recipe, overrides_of

from ...overrides import typed


def write_images(place, classes, each, size):
    for label in range(classes):
        (place / f"class{label:02d}").mkdir()
        for number in range(each):
            Image.new("RGB", size, (9 * label, number, 0)).save(place / f"class{label:02d}" / f"{number}.png")


def recipe_with(settings, *overrides, name=candidates.SMALL):
    return load_recipe(name, [*overrides_of(settings), *typed(overrides)])


def test_unreadable_files_are_skipped_by_default(photos, tmp_path):
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
def test_settings_fit_the_users_folder(tmp_path, classes, images, options, wanted, told):
    write_images(tmp_path, classes, images, (40, 50))
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


def test_a_chosen_size_holds_for_pretrained_networks(photos):
    sizes = []
    for options in ([], ["data.image_size=96"]):
        settings = describe_images(photos, typed(options)).settings_of(PRETRAINED)
        sizes.append((settings["data.images.crop"], settings["data.images.resize"]))
    assert sizes == [(224, 224), (96, 96)]


def test_few_bytes_of_images_are_kept_in_memory(photos, monkeypatch):
    """144 squares: at 48 pixels 1 MB, at 96 pixels and as the recipe has them, at 224, more."""
    monkeypatch.setattr("pml_ext_fit.images.IN_MEMORY", 2_000_000)
    assert describe_images(photos).data["data.cache"] == "memory"
    assert "data.cache" not in describe_images(photos, typed(["data.image_size=96"])).data
    assert "data.cache" not in describe_images(photos).settings_of(PRETRAINED)
    monkeypatch.undo()
    assert describe_images(photos).settings_of(PRETRAINED)["data.cache"] == "memory"


def test_squashed_images_count_as_squares(tmp_path, monkeypatch):
    """16 images of 96 x 48 pixels: at 224 pixels 2.4 MB as squares, 4.8 MB as they are."""
    write_images(tmp_path, 4, 4, (96, 48))
    found = describe_images(tmp_path)
    monkeypatch.setattr("pml_ext_fit.images.IN_MEMORY", 3_000_000)
    assert "data.cache" not in found.settings_of(PRETRAINED)
    squares = found.settings_of(PRETRAINED, Framing(224, squash=True))
    assert squares["data.cache"] == "memory"
    assert "data.cache" not in found.settings_of(PRETRAINED, Framing(448, squash=True))


@pytest.mark.parametrize("override", ["sampler.name=shuffle", "sampler={name='shuffle', batch_size=16}"])
def test_a_users_sampler_keeps_its_batches(photos, override):
    settings = describe_images(photos, typed([override])).settings_of(candidates.SMALL)
    chosen = recipe_with(settings, override)
    assert (chosen.sampler.name, chosen.sampler.settings) == ("shuffle", {})


def test_naming_the_recipes_sampler_keeps_fitting_batches(photos):
    found = describe_images(photos, typed(["sampler.name=pml/m-per-class"]))
    assert found.settings_of(candidates.SMALL) == describe_images(photos).settings_of(candidates.SMALL)


@pytest.fixture
def table_of(photos, tmp_path):
    """A function that writes a table of the photographs, 24 classes of six, with the first ``classes`` of them."""

    def written(classes=24, columns=("label", "path"), ending="csv", **more):
        files = sorted(photos.rglob("*.png"))[: 6 * classes]
        rows = {columns[0]: [file.parent.name for file in files], columns[1]: [str(file) for file in files]}
        for name, values in more.items():
            rows[name] = [values[number % 6] for number in range(len(files))]
        place = tmp_path / f"mine.{ending}"
        if ending == "parquet":
            parquet = pytest.importorskip("pyarrow.parquet")
            parquet.write_table(sys.modules["pyarrow"].table(rows), place)
            return place
        lines = [",".join(rows), *(",".join(cells) for cells in zip(*rows.values(), strict=True))]
        place.write_text("\n".join(lines))
        return place

    return written


@pytest.mark.parametrize(("classes", "split"), [(24, "class"), (6, "image")])
def test_a_table_without_split_divides_like_folders(table_of, classes, split):
    place = table_of(classes)
    found = describe_images(place)
    assert (found.data["data.name"], found.data["data.split"]) == (f"table:{place}", split)
    assert found.training_images == found.tested_images == 3 * classes
    assert "otherwise: --set data.split=" in found.description[1]


def test_a_table_with_a_split_keeps_it(table_of):
    parts = ["train", "train", "train", "validation", "test", "test"]
    place = table_of(split=parts)
    with pytest.raises(DataError, match=r"must not be trained on: .* --set data.split=image to allow it"):
        describe_images(place)
    overrides = typed(["data.split=image"])
    found = describe_images(place, overrides)
    assert (found.training_images, found.tested_images) == (72, 48)
    assert not found.splits_by_class
    assert found.data["evaluation.select_on"] == "split"  # by the rows of validation
    assert "data.split" not in found.data
    place = table_of(split=["train"] * 3 + ["validation"] * 3)
    assert "evaluation.select_on" not in describe_images(place, overrides).data  # they are tested


def test_columns_of_other_names_are_found(table_of):
    pytest.importorskip("pyarrow")
    place = table_of(columns=("Id", "Image"), ending="parquet")
    with pytest.raises(DataError, match=r"found the columns Id, Image; wanted embeddings and labels, of vectors, or"):
        describe_images(place)
    given = ["data.columns.label=Id", "data.columns.path=Image"]
    found = describe_images(place, typed(given))
    assert found.data["data.name"] == f"table:{place}"
    assert build_dataset(recipe_with(found.settings_of(candidates.SMALL), *given).data, None).train
    place = table_of(columns=("Id", "Image"), split=["train"] * 6)
    with pytest.raises(
        DataError, match="no column label and no path among Id, Image, split; .*--set data.columns.label"
    ):
        describe_images(place)


def test_vectors_and_images_in_parquet_are_told_apart(table_of, tmp_path):
    pytest.importorskip("pyarrow")
    assert is_table(table_of(ending="parquet"))
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = {"embeddings": [[1.0, 2.0]], "labels": ["a"], "path": ["a.png"]}
    parquet.write_table(sys.modules["pyarrow"].table(rows), tmp_path / "vectors.parquet")
    assert not is_table(tmp_path / "vectors.parquet")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("table:{}/none.csv", r"none.csv: no such folder or file; wanted a folder of images, a .csv or .parquet table"),
        ("{}/photo.jpg", "photo.jpg: one file; wanted a folder .*: pml-ext fit {}$"),
    ],
)
def test_what_is_not_there_is_one_line(tmp_path, name, text):
    (tmp_path / "photo.jpg").touch()
    with pytest.raises(DataError, match=text.format(tmp_path)):
        describe_images(Path(name.format(tmp_path)))
