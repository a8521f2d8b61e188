"""The commands list and show, and descriptions of names."""

import json

import pytest

from pml_ext import CBMLLoss
from pml_ext.errors import UnknownNameError
from pml_ext_train.cli.description import describe


def test_list_and_show_describe_all_kinds(pml_ext_command, tmp_path):
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
    table = pml_ext_command("list", "miners").stdout
    assert any(line.startswith("hard-pair") and "HardPairMiner" in line for line in table.splitlines())
    shown = pml_ext_command("show", "cbml").stdout
    assert all(wanted in shown for wanted in ("(27)", "alpha_pos", "0.01", "Kan", "cbml/digits"))
    assert json.loads(pml_ext_command("show", "pml/angular", "--json").stdout)[1]["kind"] == "miner"
    (tmp_path / "mine.toml").write_text('extends = "cbml/digits"\ndescription = "my own"')
    shown = pml_ext_command("show", str(tmp_path / "mine.toml")).stdout
    assert all(wanted in shown for wanted in ("my own", "schedule.epochs"))


def test_a_component_has_its_documentation_and_recipes():
    (shown,) = describe("cbml", "loss")
    assert (shown["name"], shown["kind"], shown["class"]) == ("cbml", "loss", "pml_ext_cbml.losses.CBMLLoss")
    assert shown["text"].startswith(CBMLLoss.__doc__.strip().splitlines()[0].removeprefix("r"))
    settings = {each["name"]: each["default"] for each in shown["settings"]}
    loss = CBMLLoss()
    assert float(settings["alpha_pos"]) == loss.alpha_pos
    assert {"tile_size", "relation", "reducer"} <= settings.keys()
    assert shown["capabilities"] == sorted(CBMLLoss.capabilities)
    assert "Kan" in shown["paper"]
    assert "cbml/digits" in shown["recipes"]


def test_required_settings_are_named_as_such():
    (shown,) = describe("pml/proxy-anchor")
    required = [each["name"] for each in shown["settings"] if each["default"] == "(required)"]
    assert required == ["num_classes", "embedding_size"]


def test_a_recipe_has_all_settings_with_their_origins(tmp_path):
    (shown,) = describe("cbml/digits")
    settings = {each["name"]: each["default"] for each in shown["settings"]}
    assert (settings["loss.name"], settings["data.name"]) == ("'cbml'", "'digits'")
    file = tmp_path / "mine.toml"
    lines = ['extends = "cbml/digits"', 'description = "my own"', "[sweep]", '"loss.epsilon" = [0.1, 0.2]']
    lines += ["[origin]", 'loss = "paper"', '"schedule.epochs" = "mine"']
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
