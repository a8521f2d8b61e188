"""Commands that only tell: list, show and doctor."""

import importlib.metadata
import json

import pytest

import pml_ext.losses
from pml_ext import CBMLLoss
from pml_ext.errors import UnknownNameError
from pml_ext_train.cli import installation
from pml_ext_train.cli.description import describe


@pytest.mark.nightly
def test_list_and_show_describe_all_kinds(pml_ext_command):
    listed = json.loads(pml_ext_command("list", "--json").stdout)
    wanted = {
        "losses": {"cbml", "regularized", "pml/contrastive"},
        "recipes": {"cbml/digits", "pml/multi-similarity/omniglot-small"},
        "datasets": {"digits", "omniglot-small", "cub", "inshop", "folder:PATH", "table:FILE.csv"},
        "transforms": {"RandomErasing", "ColorJitter", "RandomApply"},
        "trunks": {"convnet", "mlp", "torchvision/resnet50"},
    }
    for kind, names in wanted.items():
        assert names <= {entry["name"] for entry in listed[kind]}
    assert any(
        line.startswith("hard-pair") and "HardPairMiner" in line
        for line in pml_ext_command("list", "miners").stdout.splitlines()
    )
    shown = pml_ext_command("show", "cbml").stdout
    assert all(wanted in shown for wanted in ("(27)", "alpha_pos", "0.01", "Kan", "cbml/digits"))
    assert json.loads(pml_ext_command("show", "pml/angular", "--json").stdout)[1]["kind"] == "miner"


# Descriptions


def test_a_component_has_its_documentation_and_recipes():
    (shown,) = describe("cbml", "loss")
    assert (shown["name"], shown["kind"], shown["class"]) == ("cbml", "loss", "pml_ext_cbml.losses.CBMLLoss")
    assert shown["text"].startswith(CBMLLoss.__doc__.strip().splitlines()[0].removeprefix("r"))
    settings = {each["name"]: each["default"] for each in shown["settings"]}
    assert float(settings["alpha_pos"]) == CBMLLoss().alpha_pos
    assert {"tile_size", "relation", "reducer"} <= settings.keys()
    assert shown["capabilities"] == sorted(CBMLLoss.capabilities)
    assert "Kan" in shown["paper"]
    assert "cbml/digits" in shown["recipes"]


def test_required_settings_are_named_as_such():
    (shown,) = describe("pml/proxy-anchor")
    assert [each["name"] for each in shown["settings"] if each["default"] == "(required)"] == [
        "num_classes",
        "embedding_size",
    ]


def test_a_recipe_has_all_settings_with_their_origins(tmp_path):
    (shown,) = describe("cbml/digits")
    settings = {each["name"]: each["default"] for each in shown["settings"]}
    assert (settings["loss.name"], settings["data.name"]) == ("'cbml'", "'digits'")
    file = tmp_path / "mine.toml"
    lines = [
        'extends = "cbml/digits"',
        'description = "my own"',
        "[sweep]",
        '"loss.epsilon" = [0.1, 0.2]',
        "[origin]",
        'loss = "paper"',
        '"schedule.epochs" = "mine"',
    ]
    file.write_text("\n".join(lines))
    (shown,) = describe(str(file))
    assert shown["text"] == f"my own\n\nvariants: {file}@0.1, {file}@0.2"
    origins = {each["name"]: each["origin"] for each in shown["settings"]}
    assert (origins["loss.epsilon"], origins["schedule.epochs"]) == ("paper", "mine")


@pytest.mark.parametrize(
    ("name", "kind"),
    [("digits", "data set"), ("convnet", "trunk"), ("folder", "data set"), ("RandomErasing", "transform")],
)
def test_factories_show_options_that_recipes_set(name, kind):
    (shown,) = describe(name)
    assert shown["kind"] == kind
    required = [each["name"] for each in shown["settings"] if each["default"] == "(required)"]
    assert not {"in_channels", "root"} & set(required)
    assert describe(name, kind) == [shown]


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("digit", None, "no component, recipe, table, data set, transform or trunk 'digit'; nearest: .*dig"),
        ("convnt", "trunk", "no trunk 'convnt'; nearest: convnet"),
        ("hard-pear", "miner", "no miner 'hard-pear'; nearest: hard-pair"),
        ("cbml/99", "table", "no table 'cbml/99'; nearest: cbml/"),
        ("cbml/7", "nosuch", "no kind 'nosuch'; nearest: loss"),
    ],
)
def test_unknown_names_have_the_nearest_of_their_kind(name, kind, text):
    with pytest.raises(UnknownNameError, match=text):
        describe(name, kind)


# The command doctor


def test_doctor_prints_a_diagnosis_to_paste(pml_ext_command):
    done = pml_ext_command("doctor")
    assert (done.returncode, done.stderr) == (0, "")
    wanted = ("torch", "processors", "photos", "cbml", "a loss against PML's own", "everything works")
    assert [text for text in wanted if text not in done.stdout] == []
    about = json.loads(pml_ext_command("doctor", "--json").stdout)
    assert set(about) == {"versions", "devices", "threads", "missing", "folders", "checks", "plugins"}
    assert all(check["ok"] for check in about["checks"])
    assert {"name": "cbml", "version": "0.1.0", "status": "ok", "error": ""} in about["plugins"]


@pytest.mark.usefixtures("isolated_registry")
@pytest.mark.parametrize("fault", ["plugin", "folder"])
def test_what_does_not_work_is_an_exit_code(pml_ext_command, install_plugin, monkeypatch, fault):
    if fault == "plugin":
        install_plugin("broken", "raise RuntimeError('a wrong import')")
    else:
        monkeypatch.setenv("PML_EXT_DATA", "/proc/nowhere")
    done = pml_ext_command("doctor")
    assert done.returncode == 1
    assert "everything works" not in done.stdout
    assert {"plugin": "a wrong import", "folder": "/proc/nowhere"}[fault] in done.stdout


def test_every_extra_has_a_description():
    assert set(installation.EXTRAS) == set(importlib.metadata.metadata("pml-ext").get_all("Provides-Extra"))


def test_missing_packages_are_named_by_their_extra(monkeypatch):
    known = installation._version
    monkeypatch.setattr(installation, "_version", lambda name: "" if name in ("timm", "scipy") else known(name))
    missing = installation.missing_by_extra()
    assert [text.startswith("timm>=") for text in missing["timm"]] == [True]
    assert "scipy>=1.11" in missing["train"]
    assert "scipy>=1.11" in missing["compare"]  # has all of train
    assert any(text.startswith("timm") for text in missing["photos"])
    assert not any(text.startswith("pytest>=") for text in missing["dev"])


@pytest.mark.parametrize("present", [True, False])
def test_an_accelerator_is_tested_where_there_is_one(present, monkeypatch):
    monkeypatch.setattr(installation.torch.cuda, "is_available", lambda: present)
    monkeypatch.setattr(installation, "_test_accelerator", lambda: "a product on cuda:0 differs from that on the CPU")
    found = installation.diagnose()
    assert [check.name for check in found.checks if not check.ok] == ["a product on the accelerator"] * present
    assert len(found.checks) == 3 + present


@pytest.mark.parametrize(("margin", "text"), [(0.2, "PML's TripletMarginLoss"), (-1, "margin")])
def test_wrong_values_or_errors_are_a_finding(monkeypatch, margin, text):
    right = pml_ext.losses.TiledTripletMarginLoss

    def wrong():
        if margin < 0:
            raise ValueError("no margin")
        return right(margin=margin)

    monkeypatch.setattr(pml_ext.losses, "TiledTripletMarginLoss", wrong)
    check = next(check for check in installation.diagnose().checks if "loss" in check.name)
    assert not check.ok
    assert text in check.text
