"""Trunks as options name them, and errors of wrong names."""

import json
import os
import sys

import pytest
import torch

from pml_ext.errors import ConfigError, MissingExtraError
from pml_ext_train.networks import load_weights, named_trunk, pretrained_images
from pml_ext_train.networks.trunks import timm_trunk, torchvision_models

from .pairs import VISION, saved_pair


@pytest.mark.parametrize(
    ("text", "name", "weights"),
    [
        ("efficientnet-lite1", "efficientnet-lite1", "imagenet"),
        ("torchvision/resnet18", "torchvision/resnet18", "IMAGENET1K_V1"),
        ("torchvision/resnet50", "torchvision/resnet50", "IMAGENET1K_V2"),
        ("torchvision/resnet50=IMAGENET1K_V1", "torchvision/resnet50", "IMAGENET1K_V1"),
        (" timm/resnet10t ", "timm/resnet10t", "c3_in1k"),
        ("timm/resnet10t.c3_in1k", "timm/resnet10t", "c3_in1k"),
        ("timm/resnet10t=random", "timm/resnet10t", "random"),
    ],
)
def test_a_name_stands_for_its_weights(text, name, weights):
    if name.startswith("timm/"):
        pytest.importorskip("timm", reason="the extra timm is not installed")
    assert named_trunk(text) == {"name": name, "weights": weights}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("timm/resnet10x", "no model of timm 'resnet10x'; nearest: resnet10"),
        ("torchvision/resnt50", "no model of torchvision 'resnt50'; nearest: resnet50"),
        ("missing.pth", "missing.pth: no such file; type a .safetensors"),
        ("hf//no/such/folder", "hf//no/such/folder: no such folder. Write it with"),
        ("timm/resnet10t.nothing", "timm/resnet10t: no weights 'nothing'; known: c3_in1k"),
    ],
)
@pytest.mark.usefixtures("timm")
def test_a_wrong_name_shows_the_nearest(text, problem):
    with pytest.raises(ConfigError, match=problem):
        images_of(text)


@pytest.mark.parametrize(
    ("text", "package", "extra"),
    [
        ("timm/resnet10t", "timm", "timm"),
        ("timm/resnet10t=x.pth", "timm", "timm"),
        ("hf/some/model", "transformers", "hf"),
    ],
)
def test_a_missing_library_names_its_extra(monkeypatch, text, package, extra):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"needs the package '{package}'.*pip install \"pml-ext\[{extra}\]\""):
        named_trunk(text)


def images_of(text):
    table = named_trunk(text)
    return pretrained_images(table["name"], table)


def test_a_pair_projects_into_its_texts(tmp_path, monkeypatch):
    saved_pair(tmp_path / "a=pair")
    monkeypatch.chdir(tmp_path)
    wanted = {"name": f"hf/{tmp_path / 'a=pair'}", "weights": "DEFAULT", "pool": "projected"}
    for text in ("hf/a=pair", "a=pair", os.path.join("a=pair", "model.safetensors")):
        assert named_trunk(text) == wanted


def test_other_models_keep_their_own_pooling(tmp_path, transformers):
    transformers.Dinov2Model(transformers.Dinov2Config(**VISION)).save_pretrained(tmp_path)
    assert named_trunk(f"hf/{tmp_path}") == {"name": f"hf/{tmp_path}", "weights": "DEFAULT"}


def test_a_file_of_timm_has_its_configuration(tmp_path, timm):
    from timm.models import save_for_hf

    model = timm.create_model("resnet10t", pretrained=False)
    about = {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "input_size": [3, 96, 96], "crop_pct": 0.8}
    model.pretrained_cfg = model.pretrained_cfg | about
    save_for_hf(model, tmp_path, safe_serialization=True)
    file = tmp_path / "model.safetensors"
    wanted = {"name": "timm/resnet10t", "weights": str(file)}
    assert named_trunk(str(file)) == named_trunk(str(tmp_path)) == wanted
    images = pretrained_images(wanted["name"], wanted)
    assert (images.mean, images.std, images.image_size, images.resize) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6), 96, 120)
    trunk = timm_trunk(3, 96, "resnet10t")
    load_weights(trunk, str(file))
    assert torch.equal(trunk.conv1[0].weight, model.conv1[0].weight)


def test_a_file_of_torchvision_is_known_by_name(tmp_path):
    file = tmp_path / "resnet50-11ad3fa6.pth"
    torch.save({}, file)
    found = named_trunk(str(file))
    assert found == {"name": "torchvision/resnet50", "weights": str(file)}
    second = torchvision_models().ResNet50_Weights.IMAGENET1K_V2.transforms()
    assert pretrained_images(found["name"], found).resize == second.resize_size[0] == 232


def test_a_file_without_architecture_needs_a_name(tmp_path):
    file = tmp_path / "mine.pth"
    torch.save({}, file)
    with pytest.raises(ConfigError, match="the architecture of these weights is unknown; type timm/NAME=FILE"):
        named_trunk(str(file))
    assert named_trunk(f"torchvision/resnet18={file}") == {"name": "torchvision/resnet18", "weights": str(file)}
    (tmp_path / "config.json").write_text(json.dumps({"something": "else"}))
    with pytest.raises(ConfigError, match="no model of timm or transformers"):
        named_trunk(str(tmp_path))


def test_programs_are_not_read_as_weights(tmp_path):
    program = tmp_path / "model.pt2"
    program.write_bytes(b"PK")
    with pytest.raises(ConfigError, match="a program, which is never run"):
        named_trunk(str(program))
    script = tmp_path / "script.pt"
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), script)
    with pytest.raises(ConfigError, match="a TorchScript program, whose code is not run"):
        load_weights(torch.nn.Linear(2, 2), str(script))
