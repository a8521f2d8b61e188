"""Look-up by name, clashes, classes of the running process, and instances of components."""

import warnings

import pytest
import torch
from pytorch_metric_learning import losses, miners
from torch.utils.data import SequentialSampler

import pml_ext
from pml_ext import registry
from pml_ext.errors import PluginError, PluginWarning, UnknownNameError
from pml_ext.registry import service
from pml_ext_train.cli.description import describe
from pml_ext_train.cli.diagnosis import diagnosis
from pml_ext_train.cli.targets import find_components
from pml_ext_train.recipe import build_loss, load_recipes, loss_context, names_in, plugins_in, read_tables

pytestmark = pytest.mark.usefixtures("isolated_registry")


@pytest.mark.parametrize(
    ("look_up", "text"),
    [
        (lambda: registry.get("cbmll", kind="loss"), "no loss 'cbmll'; nearest: cbml"),
        (lambda: registry.get("CBMLLoss", kind="loss"), "no loss 'CBMLLoss'; nearest: cbml"),
        (lambda: registry.get("multi-similarity"), "pml/multi-similarity"),
        (lambda: registry.components("losses"), "no kind 'losses'; nearest: loss"),
        (lambda: registry.get("cbml", kind="losss"), "no kind 'losss'; nearest: loss"),
        (lambda: registry.factory("data set", "digit"), "no data set 'digit'; nearest: digits"),
        (lambda: pml_ext.CBMLoss, "CBMLLoss"),
        (lambda: registry.get("pml/angular"), "a loss and a miner"),  # which two kinds share
    ],
)
def test_an_unknown_name_suggests_the_nearest(look_up, text):
    with pytest.raises((UnknownNameError, AttributeError), match=text):
        look_up()


def test_ambiguous_name_is_reached_by_its_plugin(install_loss):
    for module in ("first", "second"):
        data = f"\n    @hookimpl\n    def pml_ext_datasets():\n        return {{'twice': lambda root: {module!r}}}\n"
        install_loss(module, "Same", "zz-same", more=data)
    with pytest.raises(PluginError, match="'first:zz-same' or 'second:zz-same', or leave one out"):
        registry.get("zz-same")
    assert [registry.get(f"{each}:zz-same").cls.__module__ for each in ("first", "second")] == ["first", "second"]
    with pytest.raises(UnknownNameError, match="nearest: zz-same$"):  # once
        registry.get("zz-samee")
    with pytest.raises(PluginError, match="'SameLoss' is claimed by two plugins; use 'first:zz-same' or 'second:zz-sa"):
        pml_ext.SameLoss  # noqa: B018
    with pytest.raises(PluginError, match="use 'first:twice' or 'second:twice'"):
        registry.factory("data set", "twice")
    assert [registry.factory("data set", f"{each}:twice")(None) for each in ("first", "second")] == ["first", "second"]
    assert {"first:twice", "second:twice"} <= set(registry.values("data set"))
    assert "twice" not in registry.values("data set")


def test_register_in_the_running_process_and_again():
    for margin in (1, 2):

        @pml_ext.register(name="scratch")
        class ScratchLoss(losses.ContrastiveLoss):
            """From a notebook."""

            version = margin

    assert registry.get("scratch").cls.version == 2
    assert pml_ext.ScratchLoss is ScratchLoss
    assert "ScratchLoss" in dir(pml_ext)

    @pml_ext.register
    class HomeMadeMiner(miners.BatchHardMiner):
        pass

    assert registry.get("home-made").kind == "miner"
    with pytest.raises(TypeError, match="has no base class"):
        pml_ext.register(int, name="number")
    with pytest.warns(
        PluginWarning, match="'cbml' already means a loss of the plugin 'cbml'; use 'local:cbml' for yours"
    ) as w:
        pml_ext.register(type("Mine", (pml_ext.CBMLLoss,), {}), name="cbml")
    assert w[0].filename == __file__
    assert registry.get("cbml").plugin == "cbml"
    assert registry.get("local:cbml").cls.__name__ == "Mine"


CLAIMS = """
    import importlib.resources
    from pytorch_metric_learning import distances, losses, miners, reducers, regularizers, samplers
    from torch.utils.data import SequentialSampler
    from pml_ext.plugin import Component, hookimpl

    BASES = dict(loss=losses.ContrastiveLoss, miner=miners.BatchHardMiner, regularizer=regularizers.LpRegularizer,
                 distance=distances.LpDistance, sampler=SequentialSampler, reducer=reducers.MeanReducer)
    CLASSES = {classes}

    @hookimpl
    def pml_ext_components():
        return [Component(type(class_name, (BASES[kind],), {{}}), name=name) for kind, name, class_name in CLASSES]

    def refused(*arguments, **settings):
        raise RuntimeError("of {owner}")

    @hookimpl
    def pml_ext_datasets():
        return dict.fromkeys({datasets}, refused)

    @hookimpl
    def pml_ext_trunks():
        return dict.fromkeys({trunks}, refused)

    @hookimpl
    def pml_ext_recipes():
        return [importlib.resources.files(__name__) / "recipes"]
"""


SHOWN = ("cbml", "cbml/digits", "pddm", "digits", "convnet", "hard-pair")


def ours():
    """Components of the core and of the plugins that ship with it, PML's left out."""
    return [c for c in registry.components() if not c.name.startswith("pml/") and c.plugin != registry.LOCAL]


@pytest.fixture
def claimed(install_plugin):
    """Two plugins, first and last by name, that claim every name of ours; and a third that claims our entry points."""
    names = {"datasets": [*registry.values("data set")], "trunks": [*registry.values("trunk")]}
    names["classes"] = [(c.kind, c.name, c.cls.__name__) for c in ours()]
    for owner in ("aaa", "zzz"):
        package = install_plugin(owner, CLAIMS.format(owner=owner, **names))
        (package / "recipes").mkdir()
        (package / "recipes" / "own.toml").write_text(f'extends = "cbml/digits"\n[loss]\nname = "{owner}:cbml"\n')
    install_plugin("thief", "raise RuntimeError", entry_point="cbml")
    with registry.isolated():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PluginWarning)
            diagnosis()
        yield


def everything():
    """The meanings of names: every eighth recipe, the classes of some losses, descriptions, targets of the kit."""
    shown = [entry for name in SHOWN for entry in describe(name)]
    for entry in shown:  # their recipes use ours, and are listed
        entry["recipes"] = [name for name in entry["recipes"] if name not in ("aaa/own", "zzz/own")]
    recipes = [name for name in registry.recipes() if not name.startswith(("aaa/", "zzz/"))][::8]
    tables = {name: read_tables(name) for name in recipes}
    chosen = [load_recipes(name)[name] for name in ("cbml/digits", "triplets/digits", "density/digits")]
    losses = [build_loss(recipe.loss, loss_context(recipe, [0, 1])) for recipe in chosen]
    return {
        "recipes": tables,
        "losses": [[type(part) for part in loss.modules()] for loss, _ in losses],
        "plugins": {name: plugins_in(table) for name, table in tables.items()},
        "uses": {name: names_in(name) for name in recipes},
        "shown": shown,
        "targets": [find_components(name) for name in ("cbml", "pml_ext_pddm", "local-positive", "metric-variance")],
        "data": [registry.factory("data set", "digits"), registry.factory("trunk", "convnet")],
    }


@pytest.mark.nightly
def test_plugins_with_all_our_names_change_nothing(request):
    classes = {c.cls.__name__: c.cls for c in ours()}
    before = everything()
    names = {(c.name, c.kind): c for c in ours()}
    request.getfixturevalue("claimed")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert {name: getattr(pml_ext, name) for name in classes} == classes
    assert {key: registry.get(*key) for key in names} == names
    assert everything() == before
    assert registry.get("aaa:cbml", "loss").cls is not classes["CBMLLoss"]
    listed = [registry.short_name(c) for c in registry.components("loss")]
    assert len({*listed, "cbml", "aaa:cbml", "zzz:cbml"}) == len(listed)  # each once, these among them


@pytest.mark.usefixtures("claimed")
def test_a_recipe_reaches_any_plugins_names():
    assert plugins_in(read_tables("zzz/own")).keys() == {"zzz"}
    recipe = load_recipes("zzz/own", {"loss.miner": "zzz:hard-pair"})["zzz/own"]
    loss, miner = build_loss(recipe.loss, loss_context(recipe, [0, 1]))
    assert {type(loss).__module__, type(miner).__module__} == {"zzz"}
    assert "zzz/own" in describe("zzz:cbml")[0]["recipes"]
    assert "zzz/own" not in describe("cbml", "loss")[0]["recipes"]
    assert registry.get("aaa:whole-class").cls.__mro__[1] is SequentialSampler


PLUGIN = """
from pytorch_metric_learning.losses import ContrastiveLoss
from pml_ext.plugin import Component, hookimpl

class RaisingLoss(ContrastiveLoss):
    def compute_loss(self, *arguments):
        return 1 / 0

class NothingLoss(ContrastiveLoss):
    def compute_loss(self, *arguments):
        return None

@hookimpl
def pml_ext_components():
    return [Component(RaisingLoss, "raising"), Component(NothingLoss, "nothing")]
"""


@pytest.mark.usefixtures("isolated_registry")
@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("raising", "RaisingLoss.compute_loss of the plugin 'careless', careless/__init__.py:7"),
        ("nothing", "NothingLoss of the plugin 'careless'"),  # PML's code fails, in a method that the class inherits
    ],
)
def test_the_code_that_an_error_comes_from(install_plugin, name, place):
    install_plugin("careless", PLUGIN)
    loss = registry.build(name, "loss")
    with pytest.raises((ZeroDivisionError, TypeError)) as raised:
        loss(torch.eye(2), torch.arange(2))
    assert registry.origin_of(raised.value) == ("careless", place)


def test_what_no_plugin_raised_has_no_origin():
    with pytest.raises(ZeroDivisionError) as raised:
        divmod(1, 0)
    assert registry.origin_of(raised.value) is None


MINE = """
from pml_ext.plugin import hookimpl

class Greeting:
    def greet(self, name):
        return f"hello {name}"

@hookimpl
def pml_ext_services():
    return {"greeting": Greeting}
"""


def test_a_service_of_any_plugin_is_found(install_plugin):
    install_plugin("greets", MINE)
    with registry.isolated():
        assert service("greeting", "--greet").greet("you") == "hello you"


def test_the_error_says_which_plugin_is_missing(monkeypatch):
    with pytest.raises(PluginError, match="--greet needs the plugin 'greeting', which is not installed; run: pip"):
        service("greeting", "--greet")
    monkeypatch.setenv("PML_EXT_BLOCK", "stores")
    text = r"--to X needs the plugin 'stores', which is blocked \(by PML_EXT_BLOCK\)"
    with registry.isolated():
        with pytest.raises(PluginError, match=text):
            service("stores", "--to X")
        assert service("search", "pml-ext browse").load_run is not None
