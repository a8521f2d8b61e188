"""What fits somebody's own data: splits and batches of images, tables and vectors."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext.errors import ConfigError, DataError
from pml_ext_fit.candidates import SMALL
from pml_ext_fit.framing import Framing
from pml_ext_fit.images import describe_images, is_table
from pml_ext_fit.own_data import dataset_options, fitting_batch, fitting_split, splits_of
from pml_ext_fit.trunk import PRETRAINED
from pml_ext_fit.vectors import closed_forms, describe_vectors
from pml_ext_train.data import LabeledImages
from pml_ext_train.recipe import build_dataset, load_recipe, overrides_of

from ...overrides import typed
from ..train.data.vector_files import file_of
from .helpers import recipe_of


def part(*counts):
    labels = [label for label, count in enumerate(counts) for _ in range(count)]
    return LabeledImages(torch.zeros(len(labels), 2), labels, [str(label) for label in range(len(counts))])


@pytest.mark.parametrize(
    ("counts", "split"),
    [((4, 4), "image"), ((9,) * 19, "image"), ((9,) * 20, "class"), ((3, 3, 3, 9), "class")],
)
def test_the_split_follows_from_the_classes(counts, split):
    assert fitting_split(Path("here"), [part(*counts)]) == split


def test_too_few_of_both_are_refused():
    with pytest.raises(DataError, match="2 classes, most with fewer than 4 vectors; wanted two classes of 4 vectors"):
        fitting_split(Path("here"), [part(3, 3)])


@pytest.mark.parametrize(
    ("classes", "per_class", "size", "wanted"),
    [(100, 50.0, 64, (16, 4)), (2, 50.0, 64, (2, 16)), (10, 3.5, 128, (10, 3)), (10, 1.0, 64, (10, 2))],
)
def test_a_batch_has_several_of_several_classes(classes, per_class, size, wanted):
    assert fitting_batch(classes, per_class, size) == wanted


@pytest.mark.parametrize(
    ("overrides", "options"),
    [
        (
            typed(["data.split=image", "data.workers=2", "data.images.crop=3", "loss=cbml", "data.seed = 4"]),
            {"split": "image", "seed": 4},
        ),
        ({"data.relation": {"name": "near", "within": 2}}, {"relation": {"name": "near", "within": 2}}),
        ({"data.relation.name": "near", "data.relation.within": 2}, {"relation": {"name": "near", "within": 2}}),
        ({"data.relation": "near", "data.relation.within": 2}, {"relation": {"name": "near", "within": 2}}),
        ({"data.relation": "shared-label"}, {"relation": "shared-label"}),
    ],
)
def test_data_set_options_are_found_among_overrides(overrides, options):
    assert dataset_options(overrides) == options


def test_a_wrong_relation_is_one_line():
    with pytest.raises(ConfigError, match="^data.relation: no relation 'nearr'; nearest: near, hierarchy$"):
        splits_of("folder:photos", {"relation": "nearr"}, None)


def write_images(place, classes, each, size):
    for label in range(classes):
        (place / f"class{label:02d}").mkdir()
        for number in range(each):
            Image.new("RGB", size, (9 * label, number, 0)).save(place / f"class{label:02d}" / f"{number}.png")


def recipe_with(settings, *overrides, name=SMALL):
    return load_recipe(name, [*overrides_of(settings), *typed(overrides)])


def test_unreadable_files_are_skipped_by_default(photos, tmp_path):
    place = shutil.copytree(photos, tmp_path / "photos")
    next(place.rglob("*.png")).write_bytes(b"no image")
    given = ["data.split=image", "data.image_size=16"]
    settings = describe_images(place, typed(given)).settings_of(SMALL)
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
    settings = described.settings_of(SMALL)
    lines = [*described.description, described.last_line]
    assert settings["data.image_size"] == 32
    assert tuple(map(settings.get, ("data.split", "sampler.m", "sampler.batch_size"))) == wanted
    assert len(lines) == 3
    assert f"{classes} classes of {images} images, 40 x 50" in lines[0]
    assert told in " ".join(lines)
    recipe_with(settings, *options)


@pytest.mark.parametrize(("options", "side"), [([], 224), (["data.image_size=96"], 96)])
def test_a_chosen_size_holds_for_pretrained_networks(photos, options, side):
    settings = describe_images(photos, typed(options)).settings_of(PRETRAINED)
    assert (settings["data.images.crop"], settings["data.images.resize"]) == (side, side)


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
    assert found.settings_of(PRETRAINED, Framing(224, squash=True))["data.cache"] == "memory"
    assert "data.cache" not in found.settings_of(PRETRAINED, Framing(448, squash=True))


@pytest.mark.parametrize("override", ["sampler.name=shuffle", "sampler={name='shuffle', batch_size=16}"])
def test_a_users_sampler_keeps_its_batches(photos, override):
    sampler = recipe_with(describe_images(photos, typed([override])).settings_of(SMALL), override).sampler
    assert (sampler.name, sampler.settings) == ("shuffle", {})


def test_naming_the_recipes_sampler_keeps_fitting_batches(photos):
    found = describe_images(photos, typed(["sampler.name=pml/m-per-class"]))
    assert found.settings_of(SMALL) == describe_images(photos).settings_of(SMALL)


def write_parquet(place, rows):
    pytest.importorskip("pyarrow.parquet").write_table(sys.modules["pyarrow"].table(rows), place)


@pytest.fixture
def table_of(photos, tmp_path):
    """A function that writes a table of the photographs, 24 classes of six, with the first ``classes`` of them."""

    def written(classes=24, columns=("label", "path"), ending="csv", **more):
        files = sorted(photos.rglob("*.png"))[: 6 * classes]
        rows = {columns[0]: [file.parent.name for file in files], columns[1]: [str(file) for file in files]}
        rows |= {name: np.resize(values, len(files)).tolist() for name, values in more.items()}
        place = tmp_path / f"mine.{ending}"
        if ending == "parquet":
            write_parquet(place, rows)
        else:
            place.write_text("\n".join(map(",".join, [rows, *zip(*rows.values(), strict=True)])))
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
    place = table_of(split=["train", "train", "train", "validation", "test", "test"])
    with pytest.raises(DataError, match=r"must not be trained on: .* --set data.split=image to allow it"):
        describe_images(place)
    overrides = typed(["data.split=image"])
    found = describe_images(place, overrides)
    assert (found.training_images, found.tested_images, found.splits_by_class) == (72, 48, False)
    assert found.data["evaluation.select_on"] == "split"  # by the rows of validation
    assert "data.split" not in found.data
    place = table_of(split=["train"] * 3 + ["validation"] * 3)
    assert "evaluation.select_on" not in describe_images(place, overrides).data  # they are tested


def test_columns_of_other_names_are_found(table_of):
    place = table_of(columns=("Id", "Image"), ending="parquet")
    with pytest.raises(DataError, match=r"found the columns Id, Image; wanted embeddings and labels, of vectors, or"):
        describe_images(place)
    given = ["data.columns.label=Id", "data.columns.path=Image"]
    found = describe_images(place, typed(given))
    assert found.data["data.name"] == f"table:{place}"
    assert build_dataset(recipe_with(found.settings_of(SMALL), *given).data, None).train
    place = table_of(columns=("Id", "Image"), split=["train"] * 6)
    with pytest.raises(
        DataError, match="no column label and no path among Id, Image, split; .*--set data.columns.label"
    ):
        describe_images(place)


def test_vectors_and_images_in_parquet_are_told_apart(table_of, tmp_path):
    assert is_table(table_of(ending="parquet"))
    vectors = tmp_path / "vectors.parquet"
    write_parquet(vectors, {"embeddings": [[1.0, 2.0]], "labels": ["a"], "path": ["a.png"]})
    assert not is_table(vectors)


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


def test_few_classes_are_divided_by_image(tmp_path):
    found = describe_vectors(file_of(tmp_path))
    assert found.data == {"data.name": f"vectors:{tmp_path / 'mine.npz'}", "data.split": "image"}
    assert found.head == {"model.embedder": "mlp", "model.embedding_size": 6}
    assert found.batches == {"sampler.m": 5, "sampler.batch_size": 20, "sampler.iterations": 20}
    assert found.description[0].endswith("mine.npz: 40 vectors of 6 numbers, 4 classes of 10")
    assert "20 vectors to train, 20 others of the same classes to test" in found.description[1]
    assert "--set data.split=class" in found.description[1]


def test_many_classes_get_a_linear_head(tmp_path):
    found = describe_vectors(file_of(tmp_path, classes=30, size=200))
    assert found.data["data.split"] == "class"
    assert found.head == {"model.embedder": "linear", "model.embedding_size": 128}
    assert "15 classes to train, 15 others, never trained on, to test" in found.description[1]


def test_splits_of_file_and_user_stay(tmp_path):
    found = describe_vectors(file_of(tmp_path, split=np.resize(["train", "train", "test", "validation"], 40)))
    assert "data.split" not in found.data
    assert found.data["evaluation.select_on"] == "split"
    assert "train 20 of 4 classes, validation 10 of 4 classes, test 10 of 4 classes" in found.description[1]
    assert describe_vectors(file_of(tmp_path), typed(["data.split=class"])).data == {
        "data.name": f"vectors:{tmp_path}/mine.npz"
    }


def test_a_file_named_as_in_a_recipe(tmp_path):
    file_of(tmp_path)
    assert describe_vectors("vectors:mine.npz", root=tmp_path).name == "vectors:mine.npz"
    with pytest.raises(DataError, match=r"other.npz: no such file"):
        describe_vectors(tmp_path / "other.npz")


def test_closed_forms_are_recipes_the_simplest_first(tmp_path):
    known = closed_forms(describe_vectors(file_of(tmp_path)))
    titles = ["vectors, unwhitened", "vectors, whitened", "vectors, whitened within classes"]
    assert [candidate.title for candidate in known] == titles
    models = [recipe_of(candidate).model for candidate in known]
    assert [(model.embedder, model.embedding_size, model.shrinkage) for model in models] == [
        ("none", 6, None),
        ("pca", 6, 0.6),
        ("within-class", 6, 0.6),
    ]
