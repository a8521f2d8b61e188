"""Names that several plugins claim: two plugins that claim every name of ours change nothing for anybody."""

import itertools
import json
import textwrap
import tomllib
import warnings

import pytest
from torch.utils.data import SequentialSampler
from typer.testing import CliRunner

import pml_ext
from pml_ext import registry
from pml_ext.cli.app import app
from pml_ext.description import describe
from pml_ext.errors import PluginError, PluginWarning
from pml_ext.experiment.recipe import build_loss, load_recipes, loss_context, names_in, plugins_in, read_tables
from pml_ext.experiment.runs import plan
from pml_ext.retrieval import load_run
from pml_ext.testing.targets import components_of

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
    classes = [(c.kind, c.name, c.cls.__name__) for c in ours()]
    names = {"classes": classes, "datasets": [*registry.datasets()], "trunks": [*registry.trunks()]}
    with registry.isolated():
        for owner in ("aaa", "zzz"):
            package = install_plugin(owner, CLAIMS.format(owner=owner, **names))
            (package / "recipes").mkdir()
            (package / "recipes" / "own.toml").write_text(
                textwrap.dedent("""
                extends = "cbml/digits"
                [loss]
                name = "cbml"
            """)
            )
        install_plugin("thief", "raise RuntimeError", entry_point="cbml")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PluginWarning)
            registry.load()
        yield


def everything():
    """What names mean: classes, recipes with all settings, the classes of their losses, descriptions, targets."""
    shown = [entry for name in SHOWN for entry in describe(name)]
    for entry in shown:  # they use ours, and that is told
        entry["recipes"] = [name for name in entry["recipes"] if name not in ("aaa/own", "zzz/own")]
    recipes = [name for name in registry.recipes() if not name.startswith(("aaa/", "zzz/"))]
    tables = {name: read_tables(name) for name in recipes}
    chosen = load_recipes("cbml/digits") | load_recipes("triplets/digits") | load_recipes("density/digits")
    losses = [build_loss(recipe.loss, loss_context(recipe, [0, 1])) for recipe in chosen.values()]
    return {
        "recipes": tables,
        "validated": {name: recipe.as_dict() for name, recipe in chosen.items()},
        "losses": [[type(part) for part in loss.modules()] for loss, _ in losses],
        "plugins": {name: plugins_in(table) for name, table in tables.items()},
        "uses": {name: names_in(name) for name in recipes},
        "shown": shown,
        "targets": [components_of(name) for name in ("cbml", "pml_ext_pddm", "local-positive", "metric-variance")],
        "data": [registry.dataset("digits"), registry.trunk("convnet")],
    }


def test_two_plugins_that_claim_every_name_of_ours_change_nothing(request):
    classes, before = {c.cls.__name__: c.cls for c in ours()}, everything()
    names = {(c.name, c.kind): c for c in ours()}
    request.getfixturevalue("claimed")
    star: dict[str, object] = {}
    with pytest.warns(PluginWarning) as told:
        exec("from pml_ext import *", star)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert {name: getattr(pml_ext, name) for name in classes} == classes
    assert [str(warning.message).partition(" (")[0] for warning in told] == ["the plugin 'aaa'", "the plugin 'zzz'"]
    assert "CBMLLoss" in str(told[0].message)
    assert "pml_ext.registry.get('aaa:" in str(told[0].message)
    assert star.keys() > classes.keys()
    assert {key: registry.get(*key) for key in names} == names
    after = everything()
    for what, value in before.items():
        assert after[what] == value, what
    assert registry.get("aaa:cbml", "loss").cls is not classes["CBMLLoss"]
    listed = [registry.short_name(c) for c in registry.components("loss")]
    assert len(set(listed)) == len(listed)
    assert {"cbml", "aaa:cbml", "zzz:cbml"} <= {*listed}


@pytest.mark.usefixtures("claimed")
def test_a_recipe_means_its_own_plugins_names():
    tables = read_tables("zzz/own")
    assert tables["loss"]["name"] == "zzz:cbml"
    assert tables["data"]["name"] == "digits"  # which the recipe that it extends says
    assert tables["model"]["trunk"]["name"] == "convnet"
    assert plugins_in(tables) == {"zzz": {"distribution": "zzz", "version": "1.0"}}
    recipe = load_recipes("zzz/own", ["loss.miner=hard-pair"])["zzz/own"]
    assert recipe.loss.miner.name == "zzz:hard-pair"
    loss, miner = build_loss(recipe.loss, loss_context(recipe, [0, 1]))
    assert {type(loss).__module__, type(miner).__module__} == {"zzz"}
    assert "zzz/own" in describe("zzz:cbml")[0]["recipes"]
    assert "zzz/own" not in describe("cbml", "loss")[0]["recipes"]
    assert registry.get("aaa:whole-class").cls.__mro__[1] is SequentialSampler


def test_names_of_two_others_stay_a_clash_but_in_their_own_recipes(install_loss):
    for module in ("first", "second"):
        package = install_loss(
            module,
            module.title(),
            "same",
            more="""
    @hookimpl
    def pml_ext_recipes():
        import importlib.resources
        return [importlib.resources.files(__name__) / "recipes"]
    """,
        )
        (package / "recipes").mkdir()
        (package / "recipes" / "some.toml").write_text(
            'extends = "cbml/digits"\n[loss]\nname = "same"\n[sweep]\n"loss.name" = ["same", "pml/contrastive"]\n'
        )
    with registry.isolated():
        with pytest.raises(PluginError, match=r"'first:same' \(first 1.0\) and 'second:same'"):
            registry.get("same")
        recipes = load_recipes("second/some")
        assert [recipe.loss.name for recipe in recipes.values()] == ["second:same", "pml/contrastive"]


@pytest.mark.usefixtures("claimed", "without_report")
def test_commands_do_as_before(tmp_path):
    def output(*arguments):
        done = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert done.exit_code == (1 if arguments[0] == "plugins" else 0)  # one is broken
        return done.stdout

    listed = json.loads(output("list", "losses", "--json"))
    assert [entry["class"] for entry in listed if (entry["name"], entry["from"]) == ("cbml", "cbml")] == ["CBMLLoss"]
    assert sum(entry["name"].endswith("cbml") for entry in listed) == 3
    assert "alpha_pos" in output("show", "cbml")
    told = output("plugins", "-v")
    assert "aaa: aaa 1.0, module aaa, ok\n  hooks       pml_ext_components, pml_ext_recipes, pml_ext_datasets" in told
    assert "  clash       loss 'cbml': also of 'aaa' and 'zzz'; the bare name means that of 'cbml'\n" in told
    assert "cbml: thief 1.0, module thief, broken" in told
    assert "already claims the entry-point name 'cbml'; rename one of them" in told
    few = [
        "schedule.epochs=1",
        "schedule.milestones=[]",
        "schedule.name=constant",
        "sampler.iterations=1",
        "model.trunk.width=8",
    ]
    options = [word for override in few for word in ("--set", override)]
    output("train", "cbml/digits", "--device", "cpu", "--out", str(tmp_path / "out"), *options)
    version = {"distribution": "pml-ext", "version": pml_ext.__version__}
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["plugins"] == {"cbml": version}
    assert tomllib.loads((tmp_path / "out" / "recipe.toml").read_text())["run"]["plugins"] == {"cbml": version}
    assert load_run(tmp_path / "out").recipe.loss.name == "cbml"
    assert plan("cbml/digits", tmp_path / "out", overrides=few, resume=True)


# What a run was made with


RUN = '[run]\nrecipe = "{recipe}"\nseed = 0\n[run.plugins]\ngone = {{distribution = "gone-losses", version = "1.2"}}\n'


@pytest.fixture
def folder(tmp_path):
    """A finished run of a plugin that is not installed, as far as it is read before that is noticed."""
    tables = (registry.recipe("cbml/digits")).read_text("utf-8").replace('name = "cbml"', 'name = "gone"')
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "recipe.toml").write_text(tables + RUN.format(recipe="gone/digits"))
    (run / "network.json").write_text("{}")
    (run / "metrics.json").write_text(json.dumps({"recipe": "gone/digits", "seed": 0}))
    (run / "checkpoints" / "model.pt").touch()
    return run


def test_a_run_of_a_plugin_that_is_missing_says_what_to_install(folder, monkeypatch, install_loss):
    text = r"recipe.toml: the plugin 'gone' of gone-losses 1.2 is not installed; type: pip install gone-losses==1.2"
    for read in (load_run, lambda run: plan(str(run / "recipe.toml"), out=run, resume=True)):
        with pytest.raises(PluginError, match=text):
            read(folder)
    install_loss("gone", name="gone")
    monkeypatch.setenv("PML_EXT_BLOCK", "gone")
    with registry.isolated(), pytest.raises(PluginError, match="the plugin 'gone' is left out by PML_EXT_BLOCK"):
        load_run(folder)


def test_a_runs_recipe_means_what_it_meant_when_it_was_trained(folder, install_loss):
    """It is of the plugin whose recipe was trained, also where another one claims the name since."""
    for module in ("gone", "other"):
        install_loss(module, module.title(), "gone")
    with registry.isolated():
        tables = read_tables(str(folder / "recipe.toml"))
        assert tables["loss"]["name"] == "gone:gone"


def test_an_ours_registered_again_in_a_notebook_is_told():
    try:
        with pytest.warns(PluginWarning, match="'cbml' is a loss of 'cbml' too, which the bare name means; local:cbml"):
            pml_ext.register(type("Mine", (pml_ext.CBMLLoss,), {}), name="cbml")
        assert registry.get("cbml").plugin == "cbml"
        assert registry.get("local:cbml").cls.__name__ == "Mine"
    finally:
        registry.unregister_local()


def test_every_key_that_names_something_is_known():
    """The names that recipes use are found whatever their place: each is known to the registry."""
    used = set(itertools.chain.from_iterable(names_in(name) for name in registry.recipes()))
    assert {what for what, _ in used} >= {"loss", "miner", "regularizer", "sampler", "data set", "trunk"}
    for what, name in used - {("sampler", "shuffle")}:
        assert registry.plugin_of(what, name)
