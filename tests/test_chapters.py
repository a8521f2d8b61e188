"""The chapters for plugin authors: their lines run, and their lists are complete."""

import functools
import re
import sys
import types
from pathlib import Path

import pytest

import pml_ext.testing
from pml_ext.testing import check_component
from pml_ext.testing.checks import CHECKS
from pml_ext_train.cli.scaffold import new_plugin
from pml_ext_train.cli.targets import CONTRACTS, checks_of_tools

DOCS = Path(__file__).parents[1] / "docs"
CHAPTERS = sorted((DOCS / "plugins").glob("*.md"))


@pytest.fixture
def names(tmp_path, monkeypatch):
    """The names of a chapter's lines: the scaffold's loss, the first page's miner, and the kit without slow checks."""
    monkeypatch.setattr(pml_ext.testing, "check_component", functools.partial(check_component, fast=True))
    new_plugin("my-loss", tmp_path / "new")
    module = types.ModuleType("chapter")  # by whose name its classes are pickled
    monkeypatch.setitem(sys.modules, module.__name__, module)
    found = vars(module)
    exec((tmp_path / "new" / "src" / "my_loss" / "losses.py").read_text(), found)
    miner = next(block for block in blocks(DOCS / "plugins.md") if "class MyMiner" in block)
    exec(miner, found)
    return found


def blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.S)


@pytest.mark.parametrize("page", CHAPTERS, ids=lambda page: page.stem)
def test_the_lines_of_a_chapter_run(page, names):
    for block in blocks(page):
        exec(compile(block, page.name, "exec"), names)


def test_loop_on_the_checks_page_is_tested(names):
    block = next(block for block in blocks(DOCS / "plugins" / "checks.md") if "def loop(" in block)
    exec("from pml_ext.testing import parametrize_with_checks", names)
    exec(block, names)
    check_component(names["MyLoss"], reference=names["loop"], checks=["check_reference", "check_settings"])


def test_registry_fixture_isolates_the_test(isolated_registry):
    (block,) = [block for block in blocks(DOCS / "plugins.md") if "isolated_registry" in block]
    lines = {}
    exec(block, lines)
    lines["test_a_class_of_the_running_process"](isolated_registry)
    assert isolated_registry.get("scratch").plugin == isolated_registry.LOCAL


def test_the_checks_that_a_chapter_names_exist():
    of_tools = [checks_of_tools(kind) for kind in CONTRACTS]
    every = {check.__name__ for checks in [*CHECKS.values(), *CONTRACTS.values(), *of_tools] for check in checks}
    for page in CHAPTERS:
        assert set(re.findall(r"`(check_\w+)`", page.read_text("utf-8"))) <= every
