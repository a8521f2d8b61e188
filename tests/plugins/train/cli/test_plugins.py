"""The commands on plugins: check and its contracts, plugins, and new-plugin."""

import copy
import json
import re
import tomllib

import pytest
import torch

from pml_ext import registry
from pml_ext.plugin import Command, ConfigError, DataError, DataSplits, LabeledImages
from pml_ext.testing import Named
from pml_ext_train.cli.diagnosis import diagnosis
from pml_ext_train.cli.scaffold import new_plugin
from pml_ext_train.cli.targets import CONTRACTS, check_named, checks_of_tools, find_named, find_named_by_name
from tests.testing.planted import bug_of

StopsHalfway = bug_of("check_sampler")


def test_check_names_what_fails_and_where(pml_ext_command):
    done = pml_ext_command("check", f"{StopsHalfway.__module__}.{StopsHalfway.__name__}", "-v")
    assert done.returncode == 1
    assert re.search(r"check_sampler +failed +ZeroDivisionError: .* \(at planted.py:\d+\)", done.stdout)
    assert re.search(r'File ".*planted.py", line \d+, in <lambda>\n.*images=lambda self, rows: 1 / 0', done.stdout)
    done = pml_ext_command("check", "hard-pair", "--fast", "--json")
    assert [entry for entry in json.loads(done.stdout) if entry["status"] not in ("passed", "skipped")] == []
    assert done.returncode == 0
    assert pml_ext_command("check", "nowhere_at_all").returncode == 2


def test_plugins_are_listed_as_a_table_or_json(pml_ext_command):
    records = json.loads(pml_ext_command("plugins", "--json").stdout)
    assert {"angular", "cbml", "compare", "density", "pddm", "search", "triplets"} <= {each["name"] for each in records}
    assert {each["status"] for each in records} == {"ok"}
    done = pml_ext_command("plugins", "-v")
    assert done.returncode == 0
    assert re.search(r"cbml: pml-ext \S+, module pml_ext_cbml, ok\n  hooks       .*pml_ext_components", done.stdout)


def test_new_plugin_prints_files_and_next_steps(pml_ext_command, tmp_path, monkeypatch):
    done = pml_ext_command("new-plugin", "wide-margin", "--out", tmp_path / "new")
    *files, last = done.stdout.splitlines()
    assert set(files) == {str(path) for path in (tmp_path / "new").rglob("*") if path.is_file()}
    assert last == f"next: cd {tmp_path / 'new'}; pip install -e '.[dev]'; pytest; pml-ext check wide_margin"
    monkeypatch.setattr("pml_ext_train.cli.output.WIDE", 40)  # columns, as of a narrow terminal
    done = pml_ext_command("new-plugin", "wide-margin", "--out", tmp_path / "my new one")
    *files, last = done.stdout.splitlines()
    assert all(file.startswith(str(tmp_path)) for file in files)
    assert last.startswith(f"next: cd '{tmp_path / 'my new one'}'; pip install -e '.[dev]'; pytest")
    refused = pml_ext_command("new-plugin", "WideMargin", "--out", tmp_path / "other")
    assert refused.returncode == 2
    assert "kebab-case" in refused.stderr


# Checks of plugins


CHECKS = """
from pml_ext.plugin import hookimpl
from pml_ext.testing import SkipCheck


def check_size(named):
    if named.value is None:
        raise SkipCheck("nothing to try")
    assert named.value < 5, "it is too large"
    return "tried"


@hookimpl
def pml_ext_checks():
    return {"store": check_size}
"""


@pytest.mark.parametrize(
    ("value", "status", "text"),
    [(3, "passed", "tried"), (7, "failed", "too large"), (None, "skipped", "nothing to try")],
)
def test_a_plugin_checks_a_kind_of_its_own(install_plugin, isolated_registry, value, status, text):
    install_plugin("sizes", CHECKS)
    results = {result.check: result for result in check_named(Named("store", "mine", value, "mine"))}
    assert results["check_size"].status == status
    assert text in results["check_size"].text


def test_a_blocked_plugin_adds_no_check(isolated_registry, monkeypatch):
    monkeypatch.setenv("PML_EXT_BLOCK", "stores")
    assert [check.__name__ for check in checks_of_tools("store")] == []


METRICS = """
from pml_ext.plugin import hookimpl
def first(query_labels, **kwargs):
    'The label of the first image.'
    return float(query_labels[0])
def none(**kwargs):
    'Nothing.'
    return float("nan")
def right(query_labels, knn_labels, **kwargs):
    'Precision at 1.'
    return (knn_labels[:, 0] == query_labels).float().mean()
@hookimpl
def pml_ext_metrics():
    return {"first": first, "none": none, "right_ones": right}
"""


@pytest.mark.usefixtures("isolated_registry")
def test_the_metrics_of_a_plugin_are_checked(install_plugin, pml_ext_command):
    install_plugin("measures", METRICS)
    texts = {}
    for named in find_named("measures"):
        (_, result) = check_named(named)
        texts[named.name] = (result.status, result.text)
    assert "it depends on the order of the images" in texts["first"][1]
    assert texts["none"][1] == "it gives nan for six classes of five images"
    assert texts["right_ones"][0] == "passed"
    told = pml_ext_command("check", "measures")
    assert told.returncode == 1
    assert "first (metric)" in told.stdout
    assert set(CONTRACTS) <= {*registry.hooks.HOOK_OF}


# Contracts


def shapes(root=None, seed=0, channels=1, dtype=torch.uint8, offset=0):
    """Two splits of random images."""
    generator = torch.Generator().manual_seed(seed)

    def part(count):
        return LabeledImages(
            torch.zeros(count, channels, 8, 8, dtype=dtype),
            torch.randint(4, (count,), generator=generator) + offset,
            ["a", "b", "c", "d"],
        )

    return DataSplits(part(20), part(12), image_size=8, channels=1)


def missing(root=None):
    """A data set whose files are not there."""
    raise DataError(f"{root}: no images; type: fetch them")


def rows(root=None, dtype=torch.float32):
    """A data set of vectors."""
    half = LabeledImages(torch.arange(12, dtype=dtype).reshape(4, 3), [0, 0, 1, 1], ["one", "two"])
    return DataSplits(half, half)


class Trunk(torch.nn.Module):
    """A small trunk."""

    def __init__(self, in_channels, image_size):
        super().__init__()
        self.layer = torch.nn.Linear(in_channels * image_size**2, 5)

    def forward(self, images):
        return self.layer(images.flatten(1))


class OfBatch(Trunk):
    """Subtracts the mean of the batch."""

    def forward(self, images):
        return super().forward(images - images.mean(0))


def pixels(in_channels, image_size):
    """Gives the pixels themselves, without parameters."""
    return torch.nn.Flatten()


class Detached(Trunk):
    """Trains nothing."""

    def forward(self, images):
        return super().forward(images).detach()


class Tracker:
    """Records nothing."""

    def __init__(self, folder, recipe):
        self.closed = False

    def log(self, values, step):
        assert not self.closed

    def finish(self, status, metrics, report):
        self.closed = True


class OnlyFinished(Tracker):
    """Reads metrics that only a finished run has."""

    def finish(self, status, metrics, report):
        return metrics["after"]


class Transform:
    """Inverts half of the images."""

    def __call__(self, image):
        return 255 - image if torch.rand(()) < 0.5 else image


def of_color():
    """Swaps colors, which a gray image has not."""
    return swapped


def swapped(image):
    return torch.stack([image[2], image[1], image[0]])


BUGS = {
    "labels": (
        "data set",
        lambda root=None: shapes(offset=2),
        "labels of train are 2 to 5, but there are 4",
    ),
    "drawn anew": ("data set", lambda root=None: shapes(seed=torch.seed()), "other labels in a second call"),
    "floats": (
        "data set",
        lambda root=None: shapes(dtype=torch.float32),
        "images of train are torch.float32 .*they must be uint8",
    ),
    "channels": ("data set", lambda root=None: shapes(channels=3), r"they must be uint8 \[N, 1, H, W\]"),
    "doubles": ("data set", lambda root=None: rows(dtype=torch.float64), "vector 0 of train is torch.float64; wanted"),
    "no splits": ("data set", lambda root=None: [], "it returns list; wanted pml_ext.plugin.DataSplits"),
    "no root": ("data set", lambda: shapes(), r"called as factory\(root, ...\), but too many"),
    "os error": (
        "data set",
        lambda root=None: (root / "x").read_text(),
        "raises FileNotFoundError.*wanted pml_ext",
    ),
    "of the batch": ("trunk", OfBatch, "features of an image depend on the rest of the batch"),
    "detached": ("trunk", Detached, r"no parameter gets a gradient; look for detach\(\)"),
    "no module": ("trunk", lambda channels, size: 5, "it returns int; wanted a torch.nn.Module"),
    "not built": ("trunk", lambda channels, size: 1 / 0, "cannot be built for .*ZeroDivisionError"),
    "floats of images": ("transform", lambda: torch.Tensor.float, "it gives torch.float32 of shape .*the same type"),
    "not called": ("transform", lambda: 3, "it returns int; wanted a function of an image"),
    "not sent": ("transform", lambda: lambda image: image, "cannot be pickled, as data.workers requires"),
    "fails": ("transform", lambda: torch.linalg.inv, "it refuses gray and color images: (Runtime|NotImplemented)Error"),
    "half": ("tracker", lambda folder: object(), "returns object without the method log"),
    "failed run": ("tracker", OnlyFinished, "KeyError: 'after'"),
    "one argument": ("store", lambda address: None, r"factory\(address, table, size, ...\), but too many"),
    "gone": (
        "command",
        Command("tests.plugins.train.cli.test_plugins:nothing", "x"),
        "the command 'bug' of the plugin",
    ),
    "untyped": ("command", Command("tests.plugins.train.cli.test_plugins:untyped", "x"), "its --help fails"),
}


def untyped(what: int | str):
    """Take what typer does not know."""


@pytest.mark.parametrize(("kind", "value", "text"), BUGS.values(), ids=BUGS)
def test_a_bug_is_found_and_named(kind, value, text):
    found = [
        result for result in check_named(Named(kind, "bug", value, "mine")) if result.check != "check_documentation"
    ]
    assert [result.status for result in found] == ["failed"]
    assert re.search(text, found[0].text), found[0].text


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("data set", shapes),
        ("data set", rows),
        ("data set", missing),
        ("trunk", Trunk),
        ("trunk", pixels),
        ("transform", Transform),
        ("transform", of_color),
        ("tracker", Tracker),
    ],
)
def test_correct_factories_pass_all_checks(kind, value):
    assert [(r.status, r.text) for r in check_named(Named(kind, "mine", value, "mine")) if r.fails] == []


@pytest.mark.parametrize(
    "name",
    ["RandomErasing", "ColorJitter", "RandomRotation", "convnet", "mlp", "digits", "tensorboard", "compare"],
)
def test_our_own_factories_keep_their_contracts(name):
    results = [result for named in find_named_by_name(name) for result in check_named(named)]
    assert results
    assert [(result.check, result.text) for result in results if result.fails] == []


def test_what_has_no_docstring_is_named():
    (result, _) = check_named(Named("store", "bare", lambda address, table, size: None, "mine"))
    assert "no docstring" in result.text


# Diagnosis


MISSING = """
from pml_ext.plugin import Command, Component, hookimpl

@hookimpl
def pml_ext_components():
    return [Component("theirs.gone:GoneLoss", "gone")]

@hookimpl
def pml_ext_commands():
    return {"greet": Command("theirs.gone:greet", "Greet somebody.")}
"""


@pytest.mark.usefixtures("isolated_registry")
def test_a_diagnosis_changes_no_record(install_plugin):
    install_plugin("theirs", MISSING)
    before = copy.deepcopy(registry.plugins())
    (found,) = (record for record in diagnosis() if record.name == "theirs")
    assert (found.status, found.commands) == ("broken", ["greet"])
    assert "the component 'gone' of the plugin 'theirs' cannot be imported" in found.error
    assert "the command 'greet' of the plugin 'theirs' cannot be imported" in found.error
    assert registry.plugins() == before
    assert [record.status for record in before if record.name == "theirs"] == ["ok"]


# New packages


def test_writes_a_package_and_nothing_over_it(tmp_path):
    files = new_plugin("soft-margin-loss", tmp_path / "out")
    assert all(file.is_file() for file in files)
    assert tomllib.loads((tmp_path / "out" / "pyproject.toml").read_text())["project"]["entry-points"]["pml_ext"] == {
        "soft-margin-loss": "soft_margin_loss"
    }
    assert "class SoftMarginLoss(" in (tmp_path / "out" / "src" / "soft_margin_loss" / "losses.py").read_text()
    for file in files:
        text = file.read_text()
        assert "{{" not in text
        if file.suffix == ".py":
            compile(text, str(file), "exec")
    described = "hinge between an anchor's mean similarity to negatives"
    assert all(
        described in " ".join(file.read_text().split()) for file in files if file.name in ("README.md", "losses.py")
    )
    with pytest.raises(ConfigError, match="exists and is not empty"):
        new_plugin("my-loss", tmp_path / "out")


REFUSED = {
    "kebab-case": ["MyLoss", "my_loss", ""],
    "taken by a plugin": ["cbml", "pml", "folder", "pml-ext"],
    "taken by a component": ["hard-pair", "n-pair-loss"],
    "taken by an installed package": ["json", "pytorch-metric-learning"],
    "taken by a keyword of Python; choose another, such as my-lambda": ["lambda"],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for text, names in REFUSED.items() for name in names])
def test_names_that_a_plugin_cannot_have(tmp_path, name, text):
    with pytest.raises(ConfigError, match=text):
        new_plugin(name, tmp_path / "out")
    assert not (tmp_path / "out").exists()
