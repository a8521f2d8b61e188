"""Pretrained trunks as options name them: from training to the export, their texts, and errors."""

import json
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from pml_ext.errors import ConfigError, MissingExtraError
from pml_ext_search.trained import load_run
from pml_ext_train.launch.launch import train
from pml_ext_train.networks import (
    PretrainedImages,
    add_lora,
    hf_trunk,
    load_weights,
    merged_lora,
    named_trunk,
    pretrained_images,
)
from pml_ext_train.networks.hf import PROJECTED, image_size_of, is_pair
from pml_ext_train.networks.texts import CutTextWarning, text_encoder
from pml_ext_train.networks.trunks import mlp, timm_trunk, torchvision_models
from pml_ext_train.recipe import load_recipes

from ....overrides import typed
from .pairs import MEAN, STD, VISION, WORDS, own_image_features, own_text_features, save_tokenizer, saved_pair

SHORT = [
    "evaluation.training_images=0",
    "schedule.epochs=1",
    "schedule.name=constant",
    "schedule.milestones=[]",
    "sampler.iterations=4",
    "sampler.batch_size=40",
    "sampler.m=4",
]
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "patch_size": 8}


def saved(folder, kind="dinov2"):
    """Save a small model of transformers with random weights."""
    if kind != "dinov2":
        return saved_pair(folder, kind)
    transformers = pytest.importorskip("transformers", reason="the extra hf is not installed")
    model = transformers.Dinov2Model(transformers.Dinov2Config(**SIZES, image_size=32))
    model.save_pretrained(folder)
    about = {
        "image_mean": [0.5, 0.4, 0.3],
        "image_std": [0.2, 0.3, 0.4],
        "size": {"shortest_edge": 40},
        "resample": 3,
        "crop_size": {"height": 32, "width": 32},
        "image_processor_type": "BitImageProcessor",
    }
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
        assert torch.equal(
            hf_trunk(1, 32, str(tmp_path / kind), "DEFAULT").eval()(images[:, :1]),
            trunks["auto"](images[:, :1].expand(-1, 3, -1, -1)),
        )
        assert not torch.equal(hf_trunk(3, 32, str(tmp_path / kind)).eval()(images), wanted.pooler_output)
    found = pretrained_images(f"hf/{tmp_path / kind}", {"weights": "DEFAULT"})
    wanted = PretrainedImages(
        (0.5, 0.4, 0.3), (0.2, 0.3, 0.4), 32, "bicubic", resize=32 if kind == "siglip" else 40, squash=kind == "siglip"
    )
    assert found == wanted


def test_a_missing_pooling_is_not_random(tmp_path, transformers):
    """A classifier has none, and transformers adds a random one."""
    transformers.ViTForImageClassification(transformers.ViTConfig(**SIZES, image_size=32)).save_pretrained(tmp_path)
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
    transformers.ViTForImageClassification(transformers.ViTConfig(**SIZES, image_size=32)).save_pretrained(tmp_path)
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
    train(
        "cbml/digits",
        tmp_path / "run",
        overrides=typed([*SHORT, f"model.trunk={trunk}", "model.freeze=trunk", "data.images.crop=32"]),
    )
    assert json.loads((tmp_path / "run" / "network.json").read_text())["interpolation"] == (
        "bicubic" if "hf/" in trunk else "bilinear"
    )
    assert {"frozen", "pca", "after"} <= set(json.loads((tmp_path / "run" / "metrics.json").read_text()))
    assert load_run(tmp_path / "run").embed(torch.randint(255, (2, 1, 8, 8), dtype=torch.uint8)).shape == (2, 64)


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
    overrides = [
        *SHORT,
        'model.trunk={name="mlp", hidden_sizes=[24], weights="random"}',
        'model.lora={rank=2, targets=["1"]}',
        "optimizer.lr=0.01",
    ]
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
    torch.testing.assert_close(
        plain[1].weight,
        state["1.base_layer.weight"] + (state["1.lora_B.default.weight"] @ state["1.lora_A.default.weight"]),
    )
    assert merged_lora(plain) is plain
    with pytest.raises(ConfigError, match=r"model\.lora\.targets: \['qkv'\] are not linear layers .*; choose from 1"):
        add_lora(plain, 2, ["qkv"])


# Pairs of encoders


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


@pytest.mark.parametrize(
    ("kind", "settings", "pool", "text"),
    [
        ("Dinov2", VISION, PROJECTED, r"'projected' needs a pair of encoders .*, but hf/.* is Dinov2Model"),
        (
            "Bert",
            {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 9},
            "auto",
            "BertModel has no image encoder",
        ),
    ],
)
def test_models_without_what_is_needed_are_refused(tmp_path, transformers, kind, settings, pool, text):
    config = getattr(transformers, f"{kind}Config")(**settings)
    getattr(transformers, f"{kind}Model")(config).save_pretrained(tmp_path)
    assert not is_pair(str(tmp_path))
    with pytest.raises(ConfigError, match=text):
        hf_trunk(3, 32, str(tmp_path), "DEFAULT", pool)


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
    trunk = hf_trunk(3, 32, str(tmp_path), "DEFAULT", PROJECTED).eval()
    torch.testing.assert_close(trunk(images), own_image_features(model.float(), images))


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
    assert pretrained_images(f"hf/{tmp_path}", {"weights": "DEFAULT"}) == PretrainedImages(
        tuple(MEAN), tuple(STD), size, "bilinear", resize=resize, squash=squash
    )


# Texts


CPU = torch.device("cpu")
TEXTS = ["a red car", "the blue house on the hill", "car"]


def table_of(folder, pool=PROJECTED):
    return {"name": f"hf/{folder}", "weights": "DEFAULT", "pool": pool}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_features_of_texts_equal_those_of_pairs(tmp_path, kind, channels):
    model = saved_pair(tmp_path, kind)
    torch.testing.assert_close(
        text_encoder(table_of(tmp_path), hf_trunk(channels, 32, str(tmp_path), "DEFAULT", PROJECTED), CPU)(TEXTS),
        own_text_features(model, TEXTS, kind),
        rtol=1e-5,
        atol=1e-6,
    )


@pytest.fixture
def trunk(tmp_path):
    saved_pair(tmp_path)
    return hf_trunk(3, 32, str(tmp_path), "DEFAULT", PROJECTED)


def test_a_long_text_is_cut_with_warning(trunk, tmp_path):
    encoder = text_encoder(table_of(tmp_path), trunk, CPU)
    with pytest.warns(CutTextWarning, match="has 11 tokens, but its encoder reads only 8; the end is left out"):
        assert encoder(["a red car on the hill on the hill"]).shape == (1, 24)
    with pytest.raises(ConfigError, match="found an empty text"):
        encoder(["car", " "])


def test_trunks_without_projection_have_no_texts(trunk, tmp_path):
    with pytest.raises(ConfigError, match="the trunk mlp has no text encoder; type: .*--trunk hf/PAIR"):
        text_encoder({"name": "mlp"}, mlp(3, 8), CPU)
    with pytest.raises(ConfigError, match="has pool = 'cls', whose features cannot be compared with texts"):
        text_encoder(table_of(tmp_path, "cls"), trunk, CPU)


@pytest.mark.parametrize("changed", ["trunk", "folder"])
def test_a_trunk_that_differs_is_refused(trunk, tmp_path, changed):
    if changed == "folder":
        saved_pair(tmp_path, seed=1)
    else:
        with torch.no_grad():
            next(trunk.parameters()).add_(1e-6)
    with pytest.raises(
        ConfigError, match=r"the trunk's weights differ from hf/.*\. Keep the trunk frozen: pml-ext fit"
    ):
        text_encoder(table_of(tmp_path), trunk, CPU)


def test_a_wrong_tokenizer_is_refused(trunk, tmp_path):
    save_tokenizer(tmp_path, [*WORDS, "tree"])
    with pytest.raises(ConfigError, match=r"its tokenizer returns the token 12, but its text encoder knows 12\. Save"):
        text_encoder(table_of(tmp_path), trunk, CPU)(["a tree"])
    for file in tmp_path.glob("token*"):
        file.unlink()
    with pytest.raises(ConfigError, match="tokenizer (knows no words|cannot be loaded)"):
        text_encoder(table_of(tmp_path), trunk, CPU)


# Names


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


def images_of(text):
    table = named_trunk(text)
    return pretrained_images(table["name"], table)


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


def test_a_pair_projects_into_its_texts(tmp_path, monkeypatch):
    saved_pair(tmp_path / "a=pair")
    monkeypatch.chdir(tmp_path)
    wanted = {"name": f"hf/{tmp_path / 'a=pair'}", "weights": "DEFAULT", "pool": "projected"}
    for text in ("hf/a=pair", "a=pair", "a=pair/model.safetensors"):
        assert named_trunk(text) == wanted


def test_other_models_keep_their_own_pooling(tmp_path, transformers):
    transformers.Dinov2Model(transformers.Dinov2Config(**VISION)).save_pretrained(tmp_path)
    assert named_trunk(f"hf/{tmp_path}") == {"name": f"hf/{tmp_path}", "weights": "DEFAULT"}


def test_a_file_of_timm_has_its_configuration(tmp_path, timm):
    from timm.models import save_for_hf

    model = timm.create_model("resnet10t", pretrained=False)
    model.pretrained_cfg = model.pretrained_cfg | {
        "mean": [0.1, 0.2, 0.3],
        "std": [0.4, 0.5, 0.6],
        "input_size": [3, 96, 96],
        "crop_pct": 0.8,
    }
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
    assert (
        pretrained_images(found["name"], found).resize
        == torchvision_models().ResNet50_Weights.IMAGENET1K_V2.transforms().resize_size[0]
        == 232
    )


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
