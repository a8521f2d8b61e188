"""Generated pages: the reference leaves nothing out, and the list of stable names is what the code has."""

import json
import re
import runpy
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

import pml_ext
from pml_ext import registry
from pml_ext.registry.components import KINDS
from pml_ext.testing.checks import CHECKS
from pml_ext_train.cli.targets import CONTRACTS, checks_of_tools
from pml_ext_train.launch.launch import train

from .overrides import typed

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    pytest.importorskip("griffe")
    return {name: generate() for name, generate in runpy.run_path(str(ROOT / "docs" / "hooks.py"))["PAGES"].items()}


def rows_of(text):
    """The cells of each row of a page's tables, without headings."""
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_every_key_of_recipes_has_a_meaning(pages):
    page = pages["reference/recipes.md"]
    tables = set(re.findall(r"## `\[([\w.]+)\]`", page))
    assert {"data", "data.images", "loss.memory", "model.freeze", "stages", "evaluation", "tune"} <= tables
    rows = rows_of(page)
    assert len(rows) > 100
    assert [key for key, _, _, meaning in rows if not meaning] == []
    assert ["`lr`", "number above 0", "`0.001`", "learning rate"] in rows


def test_every_component_is_on_its_page(pages):
    page = pages["reference/components.md"]
    for kind in KINDS:
        for component in registry.components(kind):
            assert f"### `{registry.short_name(component)}`: {component.class_name}" in page
    assert "| `mvc_gamma` | `0.2` | $\\gamma$, in [0, 1]. |" in page


def test_every_command_shows_its_help(pages):
    page = pages["reference/commands.md"]
    for name in registry.commands():
        assert f"## pml-ext {name}\n\n```text\nUsage: pml-ext {name} " in page
    assert "Traceback" not in page


def test_every_metric_of_runs_is_named(pages):
    names = {row[0] for row in rows_of(pages["reference/metrics.md"])}
    assert {"`recall_at_1`", "`map_at_r`", "`nmi_3`", "`verification_eer`", "`triplet_accuracy`"} <= names


def test_every_hook_and_helper_is_described(pages):
    page = pages["plugins/reference.md"]
    assert "### `pml_ext_components`\n\nReturn" in page
    rows = dict(rows_of(page))
    assert any(name.startswith("`PairLoss(") for name in rows)
    assert [name for name, meaning in rows.items() if not meaning] == []


def test_every_check_says_what_it_requires(pages):
    rows = {row[0].strip("`"): row[1:] for row in rows_of(pages["plugins/checks.md"])}
    of_tools = [checks_of_tools(kind) for kind in CONTRACTS]
    every = {check.__name__ for checks in [*CHECKS.values(), *CONTRACTS.values(), *of_tools] for check in checks}
    assert set(rows) == every
    assert all(requirement for _, requirement in rows.values())


def test_the_hook_leaves_other_pages_alone():
    pytest.importorskip("griffe")
    hook = runpy.run_path(str(ROOT / "docs" / "hooks.py"))["on_page_markdown"]
    page = type("Page", (), {"file": type("File", (), {"src_uri": "index.md"})})
    assert hook("# Title", page) == "# Title"


DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def stable():
    return runpy.run_path(str(DOCS / "stable.py"))


def test_the_list_is_what_its_command_writes(stable):
    assert stable["PATH"].read_text("utf-8") == stable["text"](), "type: python docs/stable.py"


def test_the_list_has_every_name_and_command(stable):
    lines = stable["PATH"].read_text("utf-8").splitlines()
    names = {re.match(r"pml_ext\.(\w+)", line)[1] for line in lines if line.startswith("pml_ext.")}
    assert {"CBMLLoss", "WithinClassWhitening", "load_run", "PmlExtError"} <= names
    assert set(pml_ext.__all__) - set(registry.registered("class")) <= names
    assert {
        "pml_ext.TotalWhitening(shrinkage=0.6, size=None)",
        "pml-ext train --out, -o",
        "optimizer.lr = 0.001",
        "metrics.json",
    } <= set(lines)
    commands = [name for name, (_, command) in registry.commands().items() if command.function.startswith("pml_ext")]
    assert len(commands) > 15
    assert {f"pml-ext {name}" for name in commands} <= {line.partition("  #")[0] for line in lines}


def test_every_mark_on_a_name_marks_a_line(stable):
    lines = [line.partition("  # ") for line in stable["PATH"].read_text("utf-8").splitlines()]
    for pattern in stable["PROVISIONAL"]:
        marked = {mark for line, _, mark in lines if fnmatchcase(line, pattern)}
        assert marked == {"provisional"} or pattern.startswith("pml-ext "), pattern


def test_the_page_has_the_keys_of_metrics(tmp_path, without_report):
    row = (DOCS / "stable.md").read_text("utf-8").partition("| `metrics.json` | has the keys ")[2].partition("\n")[0]
    few = ["schedule.epochs=1", "schedule.milestones=[1]", "sampler.iterations=2"]
    train("cbml/digits", overrides=typed(few), out=tmp_path / "run", device="cpu")
    assert set(re.findall(r"`(\w+)`", row)) == set(json.loads((tmp_path / "run" / "metrics.json").read_text("utf-8")))
