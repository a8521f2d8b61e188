"""``[data.images]`` from the recipe to retrieval: what training does to photographs, a trained run does too."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext import load_run
from pml_ext.errors import ConfigError, DataError
from pml_ext_train.launch.launch import train
from pml_ext_train.recipe import build_dataset, load_recipes, pipelines, preprocessing_of, read_tables
from pml_ext_train.recipe.schema import ImagesTable
from pml_ext_train.training.view import View

from ....overrides import typed

RECIPE = """
description = "photographs"
extends = ["pml/contrastive/digits", "pipelines/bn-inception"]
[data]
name = "folder:PHOTOS"
split = "image"
image_size = 16
[data.images]
crop = 18
resize = 24
squash = true
random_crop = true
flip = true
[model]
embedding_size = 4
trunk = { name = "convnet", blocks = 2, width = 4 }
[sampler]
name = "shuffle"
batch_size = 8
iterations = 1
[schedule]
name = "constant"
epochs = 1
milestones = []
"""


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    place = tmp_path_factory.mktemp("photos")
    generator = np.random.default_rng(0)
    for number in range(24):
        small = generator.integers(256, size=(6, 8, 3), dtype=np.uint8)
        (place / str(number % 3)).mkdir(exist_ok=True)
        Image.fromarray(small).resize((80, 60)).save(place / str(number % 3) / f"{number}.jpg", quality=90)
    return place


def recipe_file(place, photos, text=RECIPE):
    (place / "mine.toml").write_text(text.replace("PHOTOS", str(photos)))
    return str(place / "mine.toml")


@pytest.fixture(scope="module")
def trained(tmp_path_factory, photos):
    place = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pml_ext_train.results.finish.write_run_report", lambda *_: None)
        train(recipe_file(place, photos), out=place / "run", device="cpu")
    return place / "run"


def test_retrieval_does_to_images_what_the_run_did(trained, photos, tmp_path):
    facts = json.loads((trained / "network.json").read_text())
    keys = ("image_size", "resize", "squash", "bgr", "value_range")
    assert [facts[key] for key in keys] == [18, 24, True, True, 255]
    assert facts["normalize"] == {"mean": [104, 117, 128], "std": [1, 1, 1]}
    run = load_run(trained, device="cpu")
    view = View(run.recipe, tmp_path / "view")
    view.network.load_state_dict(run.network.state_dict())
    embedded = view.embeddings("test")
    torch.testing.assert_close(run.embed(view.splits["test"].paths), torch.nn.functional.normalize(embedded))
    exported = json.loads((run.export(tmp_path / "out") / "preprocess.json").read_text())
    assert [exported[key] for key in keys[1:]] == [[24, 24], True, True, 255]


def test_weights_of_bn_inception_get_blue_green_red(tmp_path, photos):
    text = RECIPE.replace('"convnet", blocks = 2, width = 4', '"bn-inception", weights = "mine.pth"')
    found = []
    for given in (text, text.replace(', "pipelines/bn-inception"', "")):
        recipe = next(iter(load_recipes(recipe_file(tmp_path, photos, given)).values()))
        splits = build_dataset(recipe.data, None)
        _, transform = preprocessing_of(recipe, splits)[0].transforms()
        found.append(transform(splits.train.image(0)))
    torch.testing.assert_close(found[1], found[0], atol=1e-3, rtol=0)  # of values from -128 to 151
    own = load_recipes(recipe_file(tmp_path, photos, given), {"data.images.mean": [0.5], "data.images.std": [0.5]})
    assert not preprocessing_of(next(iter(own.values())), splits)[0].bgr


def test_contradicting_settings_of_images_are_refused(tmp_path, photos):
    file = recipe_file(tmp_path, photos)
    with pytest.raises(ConfigError, match=r"both set how images are cut; leave out augment.random_crop"):
        load_recipes(file, typed(["data.augment.random_crop=true"]))
    gray = next(iter(load_recipes(file, {"data.channels": 1}).values()))
    with pytest.raises(ConfigError, match=r"are for color; folder:.* is gray"):
        View(gray, tmp_path)
    large = next(iter(load_recipes("pml/contrastive/digits", {"data.images.resize": 7}).values()))
    with pytest.raises(ConfigError, match=r"data.images.resize: found 7; wanted at least the 8 of data.images.crop"):
        View(large, tmp_path)


def test_packaged_pipelines_hold_the_numbers_of_the_papers(tmp_path):
    tables = {name: read_tables(name) for name in pipelines()}
    trunks = {name: tables.pop(name)["model"] for name in [*tables] if "model" in tables[name]}
    assert sorted(trunks) == [f"pipelines/{name}" for name in ("clip", "dinov2", "resnet50-imagenet", "siglip2")]
    assert all(table["freeze"] == "trunk" and table["trunk"]["weights"] for table in trunks.values())
    for table in tables.values():
        assert set(table) == {"data", "origin"}
        assert list(table["data"]) == ["images"]
        assert all(key.startswith("data.images") for key in table["origin"])
    images = {name: ImagesTable.model_validate(table["data"]["images"]) for name, table in tables.items()}
    cbml = images["pipelines/cbml"]
    assert (cbml.resize, cbml.crop, cbml.random_crop_scale, cbml.flip) == (256, 227, [0.16, 1.0], True)
    assert images["pipelines/angular"].squash
    (tmp_path / "child.toml").write_text('extends = ["pml/contrastive/digits", "pipelines/cbm"]')
    with pytest.raises(ConfigError, match="no pipeline 'pipelines/cbm'; nearest: pipelines/cbml"):
        load_recipes(str(tmp_path / "child.toml"))


def test_unreadable_photographs_stop_a_run_or_are_counted(photos, tmp_path):
    shutil.copytree(photos, tmp_path / "photos")
    file = recipe_file(tmp_path, tmp_path / "photos")
    for number in (0, 1, 4):
        (tmp_path / "photos" / str(number % 3) / f"{number}.jpg").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"\d.jpg: not a readable image"):
        train(file, out=tmp_path / "stopped", device="cpu")
    train(file, out=tmp_path / "run", device="cpu", overrides={"data.unreadable": "skip"})
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert sum(part.get("unreadable", 0) for part in metrics["images"].values()) == 3
    (warning,) = [text for text in metrics["warnings"] if "3 images that cannot be read (" in text]
    assert all(f"/{number}.jpg: not a readable image" in warning for number in (0, 1, 4))
    assert "3 images that cannot be read (" in (tmp_path / "run" / "report.html").read_text()
