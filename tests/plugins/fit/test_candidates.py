"""What can be delivered: closed forms and trained networks, of a trunk that sees images in one way."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext import TotalWhitening, WithinClassWhitening, load_run
from pml_ext.errors import ConfigError
from pml_ext_fit import folder_runs, selection
from pml_ext_fit.candidates import closed_forms, features_of_images, last_blocks, trained
from pml_ext_fit.closed_forms import CLOSED_FORMS, coordinates
from pml_ext_fit.commands import fit
from pml_ext_fit.framing import DEFAULT, SMALL_SIDE, Framing, Framings, as_given, framing_of, framings_to_compare
from pml_ext_fit.trunk import BLOCKS_FIRST, LITE0, PRETRAINED, Trunk, check_resumed, trunk_named, trunk_of_table
from pml_ext_train.recipe import load_recipe, overrides_of
from pml_ext_train.records.run_files import tables_of_run

from ...overrides import typed
from ..train.networks.pairs import MEAN, STD, own_image_features, saved_pair
from .helpers import recipe_of


def test_candidates_are_recipes_the_simplest_first(images, weights):
    known = [*closed_forms(images, DEFAULT, LITE0), *trained(images, DEFAULT, LITE0)]
    assert [candidate.title for candidate in known] == [
        "frozen features", "frozen features, whitened", "frozen features, whitened within classes", "last blocks",
        "small network from scratch",
    ]  # fmt: skip
    recipes = [recipe_of(candidate) for candidate in known]
    assert [recipe.model.embedder for recipe in recipes] == ["none", "pca", "within-class", "linear", "linear"]
    assert [recipe.model.freeze for recipe in recipes[:3]] == ["trunk"] * 3
    assert [recipe.model.embedding_size for recipe in recipes[:3]] == [1280] * 3
    assert [recipe.model.shrinkage for recipe in recipes[:3]] == [None, 0.6, 0.6]
    assert {recipe.data.images.crop for recipe in recipes[:4]} == {224}


@pytest.mark.parametrize(
    ("first", "title", "until"),
    [({}, "last blocks", "blocks.5"), ({"first": "blocks.3"}, "last blocks from blocks.3", "blocks.3")],
)
def test_last_blocks_begin_and_end_in_closed_form(images, weights, first, title, until):
    blocks = last_blocks(images, **first)
    assert blocks.title == title
    recipe = recipe_of(blocks)
    model = recipe.model
    assert (model.freeze.until, model.start, model.refit, model.views) == (until, "within-class", "within-class", 1)
    assert (recipe.data.images.flip, recipe.data.images.random_crop_scale) == (False, None)
    assert recipe.sampler.iterations == 20


def test_candidates_see_images_in_one_way(images):
    framing = Framing(160, squash=True)
    blocks, small = trained(images, framing, LITE0)
    for candidate in [*closed_forms(images, framing, LITE0), blocks]:
        assert candidate.settings["data.images.squash"] is True
        assert candidate.settings["data.images.crop"] == 160
    assert "data.images.squash" not in small.settings


@pytest.mark.parametrize("training_images", [72, 10_000])
def test_trials_have_fewer_batches_than_runs(images, training_images):
    blocks = last_blocks(replace(images, training_images=training_images))
    assert blocks.trial_settings(9, 0.75)["sampler.iterations"] == 20


def cosines(rows):
    points = torch.nn.functional.normalize(rows)
    return points @ points.T


@pytest.mark.parametrize("form", CLOSED_FORMS)
def test_few_items_are_whitened_in_their_coordinates(form):
    features = torch.randn(30, 100, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 1
    labels = torch.arange(30) // 3
    small = coordinates(features)
    assert small.shape == (30, 30)
    torch.testing.assert_close(cosines(small), cosines(features))
    wanted = {
        "none": torch.nn.Identity(),
        "pca": TotalWhitening(0.6).fit(features[:21]),
        "within-class": WithinClassWhitening(0.6).fit(features[:21], labels[:21]),
    }[form.embedder](features[21:])
    found = form.fit(small[:21], labels[:21], size=100)(small[21:])
    torch.testing.assert_close(cosines(found), cosines(wanted), atol=1e-6, rtol=0)


def test_many_items_are_used_unchanged():
    features = torch.randn(30, 4)
    assert coordinates(features) is features


@pytest.mark.parametrize(
    ("keys", "size", "aspect", "wanted"),
    [
        ((), None, 1.5, Framings((False, True), (160, 224))),
        ((), None, 1.0, Framings((False,), (160, 224))),
        (("data.image_size",), 96, 1.5, Framings((False, True), (96,))),
        (("data.images.squash",), None, 1.5, Framings((False,), (160, 224))),
        (("data.images.crop",), None, 1.5, Framings((False,), (224,))),
    ],
)
def test_what_the_command_leaves_open_is_compared(keys, size, aspect, wanted):
    assert framings_to_compare(DEFAULT, SMALL_SIDE, keys, size, aspect) == wanted


@pytest.mark.parametrize("framing", [DEFAULT, Framing(160, True)])
def test_settings_decide_the_framing_of_images(framing):
    assert framing_of(framing.settings) == framing


@pytest.mark.parametrize(
    ("framing", "settings", "wanted"),
    [
        (Framing(160, squash=True), {}, Framing(160, squash=True)),
        (Framing(160, squash=True), {"data.images.squash": False}, Framing(160)),
        (Framing(160), {"data.images.crop": 96, "data.images.squash": True}, Framing(96, squash=True)),
    ],
)
def test_a_framing_says_what_the_command_gives(framing, settings, wanted):
    assert as_given(framing, settings) == wanted


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The folder of a small pair, whose name has a blank."""
    folder = tmp_path_factory.mktemp("models") / "a pair"
    saved_pair(folder)
    return folder


@pytest.fixture(scope="module")
def resnet(tmp_path_factory):
    """A file of weights with timm's description beside it, for images of 64 of 80 pixels."""
    timm = pytest.importorskip("timm", reason="the extra timm is not installed")
    from timm.models import save_for_hf

    folder = tmp_path_factory.mktemp("resnet")
    torch.manual_seed(0)
    model = timm.create_model("resnet10t", pretrained=False)
    model.pretrained_cfg = model.pretrained_cfg | {"input_size": [3, 64, 64], "crop_pct": 0.8, "mean": MEAN, "std": STD}
    save_for_hf(model, folder, safe_serialization=True)
    return folder / "model.safetensors"


def flat_photos(place, count):
    """Gray and colored photographs that are wider than high."""
    generator = np.random.default_rng(0)
    place.mkdir()
    for number in range(count):
        pixels = generator.integers(0, 255, size=(40, 60, 3)).astype(np.uint8)
        Image.fromarray(pixels).convert("L" if number % 2 else "RGB").save(place / f"photo {number}.png")
    return place


@pytest.mark.usefixtures("weights")
def test_our_own_trunk_is_that_of_our_recipes():
    recipe = load_recipe(PRETRAINED)
    assert trunk_named("efficientnet-lite0") is LITE0
    assert trunk_of_table(recipe.model.trunk.model_dump()) is LITE0
    assert recipe.model.freeze.until == LITE0.last_blocks
    assert LITE0.settings_of_blocks == LITE0.settings_of_fine_tuning == {}


def test_a_convolutional_trunk_has_two_sizes(resnet):
    found = trunk_named(str(resnet))
    assert (found.features, found.smaller, found.last_blocks) == (512, 32, "layer3")
    assert found.framing == Framing(64, False, 0.8)
    assert found.title == "timm/resnet10t with the weights model.safetensors"
    assert found.framed(32, squash=False).settings == {"data.images.resize": 40, "data.images.crop": 32}
    assert found.framed(32, squash=True).settings["data.images.resize"] == 32
    recipe = load_recipe(PRETRAINED, overrides_of(found.settings_of_blocks))
    assert (recipe.model.freeze.until, recipe.model.embedding_size) == ("layer3", 512)
    recipe = load_recipe(BLOCKS_FIRST, overrides_of(found.settings_of_fine_tuning))
    assert (recipe.model.freeze, recipe.stages[0].freeze.until) == ("none", "layer3")
    assert recipe.stages[0].loss.name == "pml/multi-similarity"


def test_an_image_text_pair_has_one_size(pair):
    found = trunk_named(f"hf/{pair}")
    assert (found.features, found.smaller, found.last_blocks) == (24, None, None)
    assert found.framing == Framing(32, False, 0.8)
    recipe = load_recipe(BLOCKS_FIRST, overrides_of(found.settings_of_fine_tuning))
    assert (recipe.stages[0].freeze.until, recipe.model.embedding_size) == ("head", 24)


def test_candidates_have_the_chosen_trunk(resnet, images):
    trunk = trunk_named(str(resnet))
    for candidate in (
        features_of_images(images, trunk.framing, trunk=trunk),
        last_blocks(images, trunk.framing, trunk),
    ):
        recipe = load_recipe(candidate.recipe, overrides_of(candidate.settings))
        assert recipe.model.trunk.name == "timm/resnet10t"
        assert (recipe.data.images.resize, recipe.data.images.crop) == (80, 64)
    assert features_of_images(images, trunk.framing, trunk=trunk).description.endswith(f"of {trunk.title}")


def test_unlabeled_photographs_have_the_weights_preprocessing(pair, tmp_path, capsys, out):
    file = flat_photos(tmp_path / "photos", 6) / "photo 2.png"
    fit(file.parent, out=out, device="cpu", trunk=f"hf/{pair}")
    said = capsys.readouterr().err
    assert f"trunk: hf/{pair} with its own weights, 24 features, images: the middle of images at 32 of 40" in said
    image = Image.open(file).resize((60, 40), Image.BICUBIC).crop((14, 4, 46, 36))
    pixels = torch.tensor(np.array(image)).permute(2, 0, 1) / 255
    inputs = (pixels - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
    wanted = own_image_features(saved_pair(tmp_path / "again"), inputs[None])
    found = load_run(out, "cpu").embed([file])
    torch.testing.assert_close(found, torch.nn.functional.normalize(wanted), atol=1e-5, rtol=1e-5)


def test_a_resumed_run_keeps_its_trunk(pair, tmp_path, out):
    place = flat_photos(tmp_path / "photos", 4)
    fit(place, out=out, device="cpu", trunk=str(pair))
    fit(place, out=out, device="cpu", resume=True)
    fit(place, out=out, device="cpu", resume=True, trunk=str(pair))
    saved_pair(tmp_path / "other")
    with pytest.raises(ConfigError, match="was begun with the trunk hf/.*a pair; resume it without --trunk"):
        fit(place, out=out, device="cpu", resume=True, trunk=str(tmp_path / "other"))


def test_a_small_network_refuses_another_trunk(tmp_path):
    other = Trunk(settings={"model.trunk": {"name": "timm/x", "weights": "y"}})
    check_resumed(tmp_path, {"name": "convnet"}, other)
    check_resumed(tmp_path, None, LITE0)
    check_resumed(tmp_path, {"name": "timm/x", "weights": "y"}, other)
    with pytest.raises(ConfigError, match="was begun with the trunk efficientnet-lite0"):
        check_resumed(tmp_path, None, other)


def test_trunks_without_blocks_use_closed_forms(pair, photos, capsys, out):
    short = typed(["sampler.iterations=2", "schedule.epochs=2"])  # of the small network, with which it is compared
    fit(photos, out=out, device="cpu", quick=True, trunk=str(pair), overrides=short)
    said = capsys.readouterr().err
    assert "a pair has no blocks to train from kept activations: unwhitened and whitened" in said
    assert "last blocks" not in said.replace("has no blocks", "")
    model = tables_of_run(out)["model"]
    assert model["trunk"] == {"name": f"hf/{pair}", "weights": "DEFAULT", "pool": "projected"}
    assert (model["freeze"], model["embedding_size"]) == ("trunk", 24)
    assert (out / "metrics.json").is_file()


def test_later_labels_use_the_folders_trunk(pair, tmp_path, capsys):
    place = flat_photos(tmp_path / "photos", 24)
    fit(place, out=tmp_path / "first", device="cpu", trunk=str(pair))
    lines = ["path,class", *[f"photo {number}.png,{number % 4}" for number in range(24)]]
    (tmp_path / "classes.csv").write_text("\n".join(lines))
    capsys.readouterr()
    fit(place, labels=tmp_path / "classes.csv", out=tmp_path / "second", device="cpu")
    assert "computing features of" not in capsys.readouterr().err.partition("compares candidates")[0]
    assert tables_of_run(tmp_path / "second")["model"]["trunk"]["name"] == f"hf/{pair}"
    assert folder_runs.remembered(place) == (tmp_path / "second")


@pytest.mark.parametrize(
    ("lost", "text"),
    [
        ("preprocessor_config.json", "no preprocessor_config.json, so mean and std are not known"),
        ("model.safetensors", "cannot be loaded"),
    ],
)
def test_a_folder_that_lacks_a_file_is_refused(pair, tmp_path, out, lost, text):
    folder = shutil.copytree(pair, tmp_path / "model")
    (folder / lost).unlink()
    with pytest.raises(ConfigError, match=text):
        fit(flat_photos(tmp_path / "photos", 4), out=out, device="cpu", trunk=str(folder))
    assert not out.exists()


def test_what_goes_not_with_a_trunk(pair, photos, tmp_path, monkeypatch):
    np.savez(tmp_path / "rows.npz", embeddings=np.eye(4, dtype=np.float32), labels=[0, 0, 1, 1])
    with pytest.raises(ConfigError, match="--trunk is for images, and .*rows.npz has vectors"):
        fit(tmp_path / "rows.npz", trunk=str(pair))
    with pytest.raises(ConfigError, match="the trunk of fit has an option of its own; type: --trunk timm/resnet50"):
        fit(photos, overrides=typed(["model.trunk=timm/resnet50"]))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="--trunk needs trials, which run in one process"):
        selection.why_not(trunk_is_named=True)
