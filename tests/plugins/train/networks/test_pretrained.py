"""Trunks of transformers and timm, and adapters: from training to the export, with random weights."""

import json

import pytest
import torch
from safetensors.torch import load_file

from pml_ext.errors import ConfigError
from pml_ext_search.trained import load_run
from pml_ext_train.launch.launch import train
from pml_ext_train.networks import PretrainedImages, add_lora, hf_trunk, load_weights, merged_lora, pretrained_images
from pml_ext_train.networks.trunks import mlp
from pml_ext_train.recipe import load_recipes

from ....overrides import typed
from .pairs import saved_pair

SHORT = ["evaluation.training_images=0", "schedule.epochs=1", "schedule.name=constant", "schedule.milestones=[]"]
SHORT += ["sampler.iterations=4", "sampler.batch_size=40", "sampler.m=4"]
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "patch_size": 8}


def saved(folder, kind="dinov2"):
    """Save a small model of transformers with random weights."""
    if kind != "dinov2":
        return saved_pair(folder, kind)
    transformers = pytest.importorskip("transformers", reason="the extra hf is not installed")
    model = transformers.Dinov2Model(transformers.Dinov2Config(**SIZES, image_size=32))
    model.save_pretrained(folder)
    about = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4], "size": {"shortest_edge": 40}, "resample": 3}
    about |= {"crop_size": {"height": 32, "width": 32}, "image_processor_type": "BitImageProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(about))
    return model.eval()


@pytest.mark.parametrize("kind", ["dinov2", "clip", "siglip"])
def test_image_encoders_keep_their_own_features(tmp_path, kind):
    model = saved(tmp_path / kind, kind)
    inner = getattr(model, "vision_model", model)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        wanted = inner(pixel_values=images)
        trunks = {
            pool: hf_trunk(3, 32, str(tmp_path / kind), "DEFAULT", pool).eval() for pool in ("auto", "cls", "mean")
        }
        assert torch.equal(trunks["auto"](images), wanted.pooler_output)
        assert torch.equal(trunks["cls"](images), wanted.last_hidden_state[:, 0])
        assert torch.equal(trunks["mean"](images), wanted.last_hidden_state.mean(1))
        gray = hf_trunk(1, 32, str(tmp_path / kind), "DEFAULT").eval()
        assert torch.equal(gray(images[:, :1]), trunks["auto"](images[:, :1].expand(-1, 3, -1, -1)))
        assert not torch.equal(hf_trunk(3, 32, str(tmp_path / kind)).eval()(images), wanted.pooler_output)
    found = pretrained_images(f"hf/{tmp_path / kind}", {"weights": "DEFAULT"})
    size = 32 if kind == "siglip" else 40
    wanted = PretrainedImages((0.5, 0.4, 0.3), (0.2, 0.3, 0.4), 32, "bicubic", resize=size, squash=kind == "siglip")
    assert found == wanted


def test_a_missing_pooling_is_not_random(tmp_path, transformers):
    """A classifier has none, and transformers adds a random one."""
    config = transformers.ViTConfig(**SIZES, image_size=32)
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    images = torch.randn(2, 3, 32, 32)
    trunks = {pool: hf_trunk(3, 32, str(tmp_path), "DEFAULT", pool).eval() for pool in ("auto", "cls", "mean")}
    with torch.no_grad():
        assert torch.equal(trunks["auto"](images), trunks["cls"](images))
        assert not torch.equal(trunks["auto"](images), trunks["mean"](images))
    with pytest.raises(ConfigError, match="'pooled' is impossible, because the weights of hf/.* have no pooling; type"):
        hf_trunk(3, 32, str(tmp_path), "DEFAULT", "pooled")


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("pool", ["auto", "mean"])
def test_a_loaded_trunk_pools_as_before(tmp_path, transformers, channels, pool):
    """A finished run is opened with its checkpoint alone."""
    config = transformers.ViTConfig(**SIZES, image_size=32)
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    images = torch.randn(2, channels, 32, 32)
    trained = hf_trunk(channels, 32, str(tmp_path), "DEFAULT", pool).eval()
    loaded = hf_trunk(channels, 32, str(tmp_path), None, pool).eval()
    loaded.load_state_dict(trained.state_dict())
    with torch.no_grad():
        assert torch.equal(loaded(images), trained(images))
    assert str(loaded) == str(trained)


@pytest.mark.usefixtures("transformers")
def test_a_missing_model_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"hf/.*nothing: cannot be loaded .* If there is no network, save the model"):
        hf_trunk(3, 32, str(tmp_path / "nothing"))


@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize("trunk", ["hf", "timm/resnet10t", "torchvision/resnet18"])
def test_every_kind_of_trunk_trains_frozen(tmp_path, trunk):
    weights = "random"
    if trunk == "hf":
        saved(tmp_path / "model")
        trunk = f"hf/{tmp_path / 'model'}"
        weights = "DEFAULT"
    elif trunk.startswith("timm/"):
        pytest.importorskip("timm", reason="the extra timm is not installed")
    trunk = f'{{name="{trunk}", weights="{weights}"}}'
    overrides = [*SHORT, f"model.trunk={trunk}", "model.freeze=trunk", "data.images.crop=32"]
    train("cbml/digits", tmp_path / "run", overrides=typed(overrides))
    seen = json.loads((tmp_path / "run" / "network.json").read_text())
    assert seen["interpolation"] == ("bicubic" if "hf/" in trunk else "bilinear")
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert {"frozen", "pca", "after"} <= set(metrics)
    images = torch.randint(255, (2, 1, 8, 8), dtype=torch.uint8)
    assert load_run(tmp_path / "run").embed(images).shape == (2, 64)


@pytest.mark.parametrize(
    ("setting", "may_start"),
    [
        ("model.freeze=trunk", False),
        ("model.freeze=['0']", True),
        ('model.lora={targets=["1"]}', True),
        ('model.freeze={until="1"}', False),
    ],
)
def test_a_frozen_trunk_without_weights_is_refused(tmp_path, setting, may_start):
    given = ['model.trunk={name="mlp", hidden_sizes=[24]}', setting]
    with pytest.raises(ConfigError, match=r"model.trunk: mlp is frozen and has no weights.*model\.trunk\.weights="):
        load_recipes("cbml/digits", typed(given))
    load_recipes("cbml/digits", typed([*given, "model.trunk.weights=random"]))
    if may_start:
        load_recipes("cbml/digits", typed([*given, "model.init=run"]))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("other.pth", r"does not fit the trunk: 1 missing \(1\.bias\); 1 unknown \(x\)"),
        ("bad.pth", r"bad\.pth cannot be read as weights \(UnpicklingError\). Save only tensors"),
        ("code.pth", r"code\.pth cannot be read as weights \(UnpicklingError\). Save only tensors"),
        ("none.pth", r"none\.pth exists neither here nor in .*checkpoints"),
    ],
)
def test_unusable_weights_are_refused_by_reason(tmp_path, name, text):
    trunk = mlp(1, 8, [24])
    torch.save({"1.weight": trunk.state_dict()["1.weight"], "x": torch.ones(1)}, tmp_path / "other.pth")
    torch.save(trunk, tmp_path / "code.pth")
    (tmp_path / "bad.pth").write_bytes(b"no weights")
    with pytest.raises(ConfigError, match=text):
        load_weights(trunk, str(tmp_path / name))


@pytest.mark.usefixtures("without_report")
def test_only_adapters_train_and_are_merged(tmp_path):
    pytest.importorskip("peft", reason="the extra peft is not installed")
    trunk = 'model.trunk={name="mlp", hidden_sizes=[24], weights="random"}'
    overrides = [*SHORT, trunk, 'model.lora={rank=2, targets=["1"]}', "optimizer.lr=0.01"]
    train("cbml/digits", tmp_path / "run", overrides=typed(overrides))
    state = torch.load(tmp_path / "run" / "checkpoints" / "model.pt", weights_only=True)["trunk"]
    assert state["1.lora_B.default.weight"].abs().max() > 0
    run = load_run(tmp_path / "run")
    assert [name for name, each in run.trunk.named_parameters() if each.requires_grad] == [
        f"1.lora_{part}.default.weight" for part in "AB"
    ]
    run.export(tmp_path / "export")
    tensors = load_file(tmp_path / "export" / "model.safetensors")
    plain = mlp(1, 8, [24])
    plain.load_state_dict({name.removeprefix("trunk."): value for name, value in tensors.items() if "trunk" in name})
    images = torch.randn(5, 1, 8, 8)
    torch.testing.assert_close(plain(images), run.trunk(images))
    change = state["1.lora_B.default.weight"] @ state["1.lora_A.default.weight"]
    torch.testing.assert_close(plain[1].weight, state["1.base_layer.weight"] + change)
    assert merged_lora(plain) is plain
    with pytest.raises(ConfigError, match=r"model\.lora\.targets: \['qkv'\] are not linear layers .*; choose from 1"):
        add_lora(plain, 2, ["qkv"])
