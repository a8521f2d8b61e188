"""The chapters for plugin authors: their lines run, their links lead somewhere, what they list is all there is."""

import re
import runpy
import sys
import types
from pathlib import Path

import pytest

import pml_ext.testing
from pml_ext import registry
from pml_ext.scaffold import new_plugin
from pml_ext.testing import check_component, checks_of
from pml_ext.testing.checks import CHECKS, COMPARED

DOCS = Path(__file__).parents[1] / "docs"
CHAPTERS = sorted((DOCS / "plugins").glob("*.md"))
# Long, and held for ours and for the scaffold elsewhere.
LONG = {
    "check_compile",
    "check_memory_growth",
    "check_saved_bytes",
    "check_pml_trainer",
    "check_torch_func",
    "check_no_loop_over_anchors",
    "check_order_does_not_matter",
    "check_dtypes",
    "check_eval_keeps_state",
    "check_other_process",
}


def shorter(component, *more, checks=None, **settings):
    """What ``check_component`` does, without the longest checks."""
    if checks is None:
        kind = registry.kind_of(component if isinstance(component, type) else type(component))
        some = [check.__name__ for check in checks_of(kind) if check.__name__ not in LONG]
        checks = some + ["check_reference", "check_settings"] * ("reference" in settings)
    return check_component(component, *more, checks=checks, **settings)


@pytest.fixture
def names(tmp_path, monkeypatch):
    """What a chapter's lines are run with: the scaffold's loss, and the first page's miner."""
    monkeypatch.setattr(pml_ext.testing, "check_component", shorter)
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


def test_the_loop_of_the_page_on_checks_is_that_of_the_scaffold(names):
    block = next(block for block in blocks(DOCS / "plugins" / "checks.md") if "def loop(" in block)
    exec("from pml_ext.testing import parametrize_with_checks", names)
    exec(block, names)
    check_component(names["MyLoss"], reference=names["loop"], checks=["check_reference", "check_settings"])


def test_the_fixture_isolates(isolated_registry):
    (block,) = [block for block in blocks(DOCS / "plugins" / "names.md") if "isolated_registry" in block]
    lines: dict[str, object] = {}
    exec(block, lines)
    test = lines["test_a_class_of_the_running_process"]
    assert callable(test)
    test(isolated_registry)
    assert isolated_registry.get("scratch").plugin == isolated_registry.LOCAL


def test_links_lead_somewhere():
    for page in (DOCS / "plugins.md", *CHAPTERS):
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text("utf-8")):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
    linked = set(re.findall(r"\(plugins/(\w+\.md)\)", (DOCS / "plugins.md").read_text("utf-8")))
    assert linked == {page.name for page in CHAPTERS}


def test_every_check_is_on_its_page():
    page = (DOCS / "plugins" / "checks.md").read_text("utf-8")
    every = {check.__name__ for checks in CHECKS.values() for check in checks} | {check.__name__ for check in COMPARED}
    shared = {"check_capabilities"}  # said in words
    assert every - shared <= set(re.findall(r"check_\w+", page))
    assert set(re.findall(r"`(check_\w+)`", page)) <= every | {"check_component"}


def test_the_reference_is_what_its_command_writes():
    reference = runpy.run_path(str(DOCS / "plugins" / "reference.py"))
    assert reference["PATH"].read_text("utf-8") == reference["text"](), "type: python docs/plugins/reference.py"
