"""Packages of others that are careless, and packages of the wheel that are missing."""

import re
import subprocess
import sys
import warnings

import pytest

from pml_ext import registry
from pml_ext.errors import PluginWarning
from pml_ext_train.cli.diagnosis import diagnosis
from pml_ext_train.launch.launch import train

from ..overrides import typed

pytestmark = pytest.mark.usefixtures("isolated_registry")
HOOKS = "from pml_ext.plugin import Command, Component, hookimpl\n"
LOSS = """
from pytorch_metric_learning.losses import ContrastiveLoss
class CarelessLoss(ContrastiveLoss):
    '''A loss.'''
    def __init__(self, **kwargs):
        {body}
        super().__init__(**kwargs)
"""


def package(hook, answer, before="", body="pass"):
    """Return the source of a package with one hook."""
    return f"{before}\n{HOOKS}{LOSS.format(body=body)}@hookimpl\ndef pml_ext_{hook}():\n    {answer}\n"


# The source of a package, and what `pml-ext plugins` says of it.
CARELESS = {
    "missing-module": (package("components", "return [Component('careless.gone:XLoss', 'x')]"), "No module named"),
    "no-class": (package("components", "return [Component('careless:HOOKS', 'x')]"), "cannot be imported"),
    "another-kind": (
        package("components", "return [Component('careless:CarelessLoss', 'x', named_kind='miner')]"),
        r"is a loss, registered as a miner; write Component\(..., named_kind=\"loss\"\)",
    ),
    "no-colon": (package("components", "return [Component('careless.gone', 'x')]"), '"package.module:Class"'),
    "summary": (
        package("components", "return [Component(CarelessLoss, 'x', summary=5)]"),
        "summary of the component 'x' is 5",
    ),
    "paper": (package("components", "return [Component(CarelessLoss, 'x', paper='T')]"), "expected a Paper"),
    "number": (package("components", "return [Component(CarelessLoss, 5)]"), "is 5; expected kebab-case"),
    "none": (package("components", "return None"), "pml_ext_components returned None; it must return a list"),
    "one": (package("components", "return Component(CarelessLoss, 'x')"), "must return a list of Component"),
    "halfway": (package("components", "yield Component(CarelessLoss, 'x'); yield 1 / 0"), "ZeroDivisionError"),
    "async": (package("components", "return []").replace("def pml", "async def pml"), "returned <coroutine"),
    "quits": ("import sys; sys.exit(0)", "SystemExit: 0"),
    "endless": ("def f(): f()\nf()", "RecursionError"),
    "metric": (package("metrics", "return {'m': max}"), r"expected a function\(\*\*kwargs\)"),
    "command": (package("commands", "return {'greet': Command('careless:greet', None)}"), "One line for --help"),
    "gone-command": (package("commands", "return {'greet': Command('careless.t:greet', '')}"), "the command 'greet'"),
    "factory": (package("trunks", "return {5: int}"), "5 is <class 'int'>; expected a function"),
}
COMMANDS = [("--help",), ("list", "--json"), ("show", "cbml"), ("show", "cbml/digits"), ("list", "losses")]


@pytest.mark.parametrize(("source", "text"), CARELESS.values(), ids=CARELESS)
def test_a_careless_package_is_named(install_plugin, pml_ext_command, source, text):
    install_plugin("careless", "").joinpath("__init__.py").write_text(source)
    with warnings.catch_warnings(action="ignore"):
        told = pml_ext_command("plugins").stdout
    (line,) = [line for line in told.splitlines() if line.startswith("careless")]
    assert re.search(text, line), line
    assert len([line for line in told.splitlines() if " broken " in line]) == 1


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["missing-module", "none", "quits", "gone-command", "summary"])
def test_commands_survive_a_careless_package(install_plugin, pml_ext_command, name):
    source, _ = CARELESS[name]
    install_plugin("careless", "").joinpath("__init__.py").write_text(source)
    for command in COMMANDS:
        sys.modules.pop("careless", None)
        with registry.isolated():
            done = pml_ext_command(*command)
        assert done.returncode == 0, command
    problem = "broken: the component 'x' of the plugin 'careless' cannot be imported"
    assert (problem in done.stdout) == (name == "missing-module")


def test_of_several_bad_hooks_all_are_shown(install_plugin):
    hooks = ("components", "recipes", "datasets", "trunks", "metrics", "trackers", "stores", "commands", "papers")
    source = HOOKS + "".join(f"@hookimpl\ndef pml_ext_{hook}(): return None\n" for hook in hooks)
    install_plugin("careless", "").joinpath("__init__.py").write_text(source)
    with warnings.catch_warnings(action="ignore", category=PluginWarning):
        (record,) = [record for record in diagnosis() if record.name == "careless"]
    for hook in hooks:
        assert f"pml_ext_{hook} returned None" in record.error


QUICK = ("schedule.epochs=2", "schedule.milestones=[1]", "sampler.iterations=2", "evaluation.baselines=false")
METRICS = """
def raises(**kwargs):
    return 1 / 0

def text(**kwargs):
    return "high"

def changes(query, knn_labels, label_counts, **kwargs):
    query.zero_()
    knn_labels.zero_()
    label_counts[1].zero_()
    return 0.5

def counted(label_counts, **kwargs):
    return int(label_counts[1].sum())

def by_class(**kwargs):
    return [0.5, 1.0]
"""


def test_a_metric_that_raises_ends_no_run(install_plugin, tmp_path, without_report):
    hook = "return {'raises': raises, 'text': text, 'changes': changes, 'counted': counted, 'by_class': by_class}"
    install_plugin("careless", "").joinpath("__init__.py").write_text(package("metrics", hook, METRICS))
    (measured,) = train("triplets/digits", out=tmp_path / "run", seed=0, overrides=typed(QUICK), device="cpu")
    assert measured["after"].pop("changes") == 0.5
    assert measured["after"].pop("counted") > 0
    assert {"raises", "text", "by_class"}.isdisjoint(measured["after"])
    shown = " ".join(measured["warnings"])
    assert "the metric 'raises' of the plugin 'careless' failed: ZeroDivisionError" in shown
    assert "the metric 'text' of the plugin 'careless' failed: TypeError: it returned 'high', wanted a number" in shown
    with registry.isolated():
        sys.modules.pop("careless")
        install_plugin("careless", "", distribution="other").joinpath("__init__.py").write_text("")
        (without,) = train("triplets/digits", out=tmp_path / "other", seed=0, overrides=typed(QUICK), device="cpu")
    assert without["after"] == measured["after"]


@pytest.mark.parametrize(("body", "error"), [("1 / 0", "ZeroDivisionError"), ("exit(3)", "SystemExit: 3")])
def test_check_goes_on_after_a_constructor_that_fails(install_plugin, pml_ext_command, body, error):
    both = "return [Component(CarelessLoss, 'fails'), Component('careless.gone:XLoss', 'x')]"
    install_plugin("careless", "").joinpath("__init__.py").write_text(package("components", both, body=body))
    told = pml_ext_command("check", "careless", "--fast")
    assert told.returncode == 1
    assert re.search(rf"fails +check_constructor +failed +its constructor raises {error}", told.stdout)
    assert re.search(r"x +check_constructor +failed +PluginError: the component 'x' of the plugin 'care", told.stdout)


PARTS = """
import sys
import torch

class Exits(torch.nn.Linear):
    def __init__(self, in_channels, image_size):
        super().__init__(in_channels * image_size**2, 4)
    def forward(self, images):
        if self.training:
            sys.exit(7)
        return super().forward(images.flatten(1))

class Raises(Exits):
    def forward(self, images):
        if self.training:
            raise KeyError("layer")
        return super().forward(images)

class Tracker:
    def __init__(self, folder, recipe):
        pass
    def log(self, values, step):
        values["mine"] = 1.0
        sys.exit("log in first")
    def finish(self, status, metrics, report):
        metrics.clear()

class Late(Tracker):
    def log(self, values, step):
        assert "mine" not in values

def command():
    sys.exit(5)
"""


@pytest.mark.parametrize(
    ("trunk", "code", "text"),
    [
        (
            "exits",
            2,
            r"Exits.forward of the plugin 'careless', careless/__init__.py:\d+ calls sys.exit\(7\), which ends",
        ),
        ("raises", 1, r"KeyError: 'layer', in Raises.forward of the plugin 'careless', careless/__init__.py:\d+ \("),
    ],
)
def test_the_code_that_ends_a_run_is_named(install_plugin, pml_ext_command, tmp_path, trunk, code, text):
    hook = "return {'exits': Exits, 'raises': Raises}"
    install_plugin("careless", "").joinpath("__init__.py").write_text(package("trunks", hook, PARTS))
    sets = [f"--set={setting}" for setting in (f"model.trunk={{name='{trunk}'}}", *QUICK)]
    told = pml_ext_command("train", "triplets/digits", "--out", tmp_path / "run", *sets)
    assert told.returncode == code
    assert re.search(text, told.stderr), told.stderr


def test_a_plugins_own_command_may_exit(install_plugin, pml_ext_command):
    hook = "return {'mine': Command('careless:command', 'Exit.')}"
    install_plugin("careless", "").joinpath("__init__.py").write_text(package("commands", hook, PARTS))
    told = pml_ext_command("mine")
    assert (told.returncode, told.stderr) == (5, "")


def test_a_tracker_that_exits_ends_no_run(install_plugin, tmp_path, without_report):
    hook = "return {'exits': Tracker, 'late': Late}"
    install_plugin("careless", "").joinpath("__init__.py").write_text(package("trackers", hook, PARTS))
    (measured,) = train(
        "triplets/digits", out=tmp_path / "run", overrides=typed((*QUICK, "track=['exits', 'late']")), device="cpu"
    )
    (warning,) = measured["warnings"]
    assert warning.startswith("exits of the plugin 'careless': recording failed (SystemExit: log in")
    assert measured["after"]


def test_check_fails_for_broken_hooks_and_recipes(install_plugin, pml_ext_command):
    hook = "return [importlib.resources.files(__name__) / 'recipes']"
    source = package("recipes", hook, "import importlib.resources") + "@hookimpl\ndef pml_ext_papers(): return None\n"
    careless = install_plugin("careless", "")
    careless.joinpath("__init__.py").write_text(source)
    careless.joinpath("recipes").mkdir()
    careless.joinpath("recipes/good.toml").write_text("description = 'Good.'\nextends = 'cbml/digits'\n")
    careless.joinpath("recipes/bad.toml").write_text("description = 'Bad.'\nextends = 'cbml/digits'\nloss = 5\n")
    told = pml_ext_command("check", "careless", "--fast", COLUMNS="300")
    assert told.returncode == 1
    assert re.search(r"careless \(plugin\) +check_hooks +failed +pml_ext_papers: .*returned None", told.stdout)
    assert re.search(r"careless \(recipes\) +check_recipe +failed +.*bad.toml: loss: found 5", told.stdout)
    assert re.search(r"careless \(recipes\) +1 +1 +0 +0", told.stdout)


TOOLS = ("browse", "compare", "fit", "parts", "search", "stores")
START = """
import sys
import warnings
sys.modules["pml_ext_{missing}"] = None
from pml_ext import registry
from pml_ext.errors import MissingExtraError, PluginWarning
warnings.simplefilter("error", PluginWarning)
"""
SCRIPT = """
import torch
from pytorch_metric_learning import trainers
import pml_ext

labels = torch.arange(8) // 2
inputs = torch.randn(8, 4)
context = {"embedding_size": 4, "num_classes": 4, "class_labels": [0, 1, 2, 3]}
tried = set()
for component in registry.components("loss"):
    if component.plugin not in ("angular", "cbml", "density", "pddm", "triplets"):
        continue
    loss = registry.build(component.qualified_name, "loss", context)
    embeddings = inputs.clone().requires_grad_()
    loss(embeddings, labels).backward()
    assert embeddings.grad.isfinite().all(), component
    trainers.MetricLossOnly(
        models={"trunk": torch.nn.Linear(4, 4)},
        optimizers={},
        batch_size=8,
        loss_funcs={"metric_loss": loss},
        dataset=torch.utils.data.TensorDataset(inputs, labels),
        dataloader_num_workers=0,
        iterations_per_epoch=1,
    ).train(num_epochs=1)
    tried.add(component.plugin)
assert len(tried) == 5
accuracy = pml_ext.RetrievalAccuracyCalculator(include=("recall_at_1",)).get_accuracy(inputs, labels)
assert 0 <= accuracy["recall_at_1"] <= 1

names = {}
exec("from pml_ext import *", names)
assert {"CBMLLoss", "DensityRegularizer", "WithinClassWhitening"} <= names.keys()
assert "train" not in names
for name in ("train", "load_run"):
    try:
        getattr(pml_ext, name)
    except MissingExtraError as error:
        assert f'pml_ext.{name} needs the package' in str(error)
    else:
        raise AssertionError(name)
assert [record.name for record in registry.plugins() if record.status != "ok"] == ["pml"]
"""
LISTING = """
from pml_ext.__main__ import main

left_out = [record for record in registry.plugins() if record.status != "ok"]
assert [(record.name, record.status) for record in left_out] == [("{missing}", "not installed")], left_out
sys.argv = ["pml-ext", "list"]
try:
    main()
except SystemExit as ended:
    assert not ended.code
assert "torch" not in sys.modules
for name, (plugin, command) in registry.commands().items():
    command.load(name, plugin)
"""


def run(program: str, missing: str) -> subprocess.CompletedProcess[str]:
    """A program in a process in which a plugin's package cannot be imported."""
    command = [sys.executable, "-c", (START + program).replace("{missing}", missing)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.nightly
def test_scripts_with_pml_need_no_training():
    done = run(SCRIPT, "train")
    assert done.returncode == 0, done.stderr


def test_the_command_says_what_to_install():
    done = run("from pml_ext.__main__ import main\nmain()", "train")
    assert done.returncode == 2
    assert done.stderr.endswith("Run: pip install --force-reinstall 'pml-ext[train]'\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.nightly
@pytest.mark.parametrize("tool", TOOLS)
def test_tools_work_without_any_other(tool):
    done = run(LISTING, tool)
    assert done.returncode == 0, done.stderr
    assert "cbml" in done.stdout
