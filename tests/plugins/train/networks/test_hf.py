"""Image encoders of transformers: complete weights, and the space that a pair shares."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from pml_ext.errors import ConfigError
from pml_ext_train.networks.hf import PROJECTED, hf_trunk, image_size_of, is_pair
from pml_ext_train.networks.pretrained import PretrainedImages, pretrained_images

from .pairs import MEAN, STD, VISION, own_image_features, saved_pair


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_projected_features_equal_those_of_pairs(tmp_path, kind):
    model = saved_pair(tmp_path / "a pair", kind)
    images = torch.randn(3, 3, 32, 32)
    trained = hf_trunk(3, 32, str(tmp_path / "a pair"), "DEFAULT", PROJECTED).eval()
    loaded = hf_trunk(3, 32, str(tmp_path / "a pair"), None, PROJECTED).eval()
    loaded.load_state_dict(trained.state_dict())
    with torch.no_grad():
        assert torch.equal(trained(images), own_image_features(model, images))
        assert torch.equal(loaded(images), trained(images))
    assert is_pair(str(tmp_path / "a pair"))
    assert image_size_of(str(tmp_path / "a pair")) == 32


def test_only_pairs_have_projected_features(tmp_path, transformers):
    transformers.Dinov2Model(transformers.Dinov2Config(**VISION)).save_pretrained(tmp_path)
    assert not is_pair(str(tmp_path))
    with pytest.raises(ConfigError, match=r"'projected' needs a pair of encoders .*, but hf/.* is Dinov2Model"):
        hf_trunk(3, 32, str(tmp_path), "DEFAULT", PROJECTED)


@pytest.mark.parametrize("lost", ["vision_model.encoder.layers.1.mlp.fc1.weight", "visual_projection.weight"])
def test_incomplete_weights_of_a_pair_are_refused(tmp_path, lost):
    saved_pair(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors[lost]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigError, match="its weights lack 1 tensors of CLIPModel .*, which would be random"):
        hf_trunk(3, 32, str(tmp_path), "DEFAULT", PROJECTED)
    if lost.startswith("visual"):  # the trunk may end before it
        hf_trunk(3, 32, str(tmp_path), "DEFAULT")


def test_weights_of_half_precision_become_float32(tmp_path):
    model = saved_pair(tmp_path)
    model.half().save_pretrained(tmp_path)
    images = torch.randn(2, 3, 32, 32)
    found = hf_trunk(3, 32, str(tmp_path), "DEFAULT", PROJECTED).eval()(images)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, own_image_features(model.float(), images))


def test_a_model_of_texts_is_refused(tmp_path, transformers):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    transformers.BertModel(transformers.BertConfig(**sizes, vocab_size=9)).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="BertModel has no image encoder"):
        hf_trunk(3, 32, str(tmp_path), "DEFAULT")


@pytest.mark.parametrize(
    ("about", "wanted"),
    [
        ({"size": {"shortest_edge": 40}, "crop_size": 32, "do_center_crop": True}, (32, 40, False)),
        ({"size": {"height": 32, "width": 32}}, (32, 32, True)),
        ({"size": 32}, (32, 32, True)),
        ({"size": {"shortest_edge": 256}, "crop_size": {"height": 224, "width": 224}}, (224, None, False)),
        ({"size": {"shortest_edge": 210}, "crop_pct": 0.875, "do_center_crop": False}, (210, None, False)),
        ({"size": {"shortest_edge": 224}, "crop_pct": 0.95}, (224, 235, False)),
    ],
)
@pytest.mark.usefixtures("transformers")
def test_preprocessing_follows_the_image_processor(tmp_path, about, wanted):
    about |= {"image_mean": MEAN, "image_std": STD, "resample": 2}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(about))
    size, resize, squash = wanted
    found = pretrained_images(f"hf/{tmp_path}", {"weights": "DEFAULT"})
    assert found == PretrainedImages(tuple(MEAN), tuple(STD), size, "bilinear", resize=resize, squash=squash)
