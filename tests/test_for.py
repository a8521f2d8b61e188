"""Which tests to run for which files: ``python -m tests.for``."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOR = runpy.run_path(str(ROOT / "tests" / "for.py"))


@pytest.fixture(scope="module")
def graph():
    return FOR["import_graph"]()


@pytest.fixture
def chosen(graph, monkeypatch):
    """The tests for a file, on a graph that is built once."""
    monkeypatch.setitem(FOR["chosen_tests"].__globals__, "import_graph", lambda: graph)
    return lambda file, steps=1: FOR["chosen_tests"]([str(ROOT / file)], steps)


def test_an_import_of_a_door_counts_for_the_module_that_defines_the_name(graph):
    imports = graph.find_modules_directly_imported_by("pml_ext_cbml.losses")
    assert {"pml_ext.losses.pair_loss", "pml_ext.pairwise.reductions"} <= imports
    assert "pml_ext.training.trackers" not in imports
    assert "pml_ext_cbml.losses" in graph.find_modules_directly_imported_by("tests.losses.test_memory")
    assert not graph.find_modules_directly_imported_by("pml_ext.plugin") & {"pml_ext.losses.pair_loss"}


def test_more_steps_choose_more_tests(chosen):
    masks = "pml_ext/pairwise/masks.py"
    assert set(chosen(masks, 0)) < set(chosen(masks, 1)) < set(chosen(masks, 2))
    assert "tests/pairwise/test_masks.py" in chosen(masks, 0)
    assert "tests/losses/test_pair_loss.py" in chosen(masks, 1)
    assert "tests/cli/test_scaffold.py" not in chosen(masks, 1)


def test_what_is_not_imported_is_found_by_its_name(chosen):
    assert "tests/plugins/browse/test_server.py" in chosen("plugins/pml_ext_browse/server.py", 0)
    assert "tests/test_pages.py" in chosen("docs/pairs.md")
    assert "tests/plugins/test_origins.py" in chosen("plugins/pml_ext_cbml/recipes/digits.toml")
    assert chosen("tests/test_for.py") == ["tests/test_for.py"]
    assert "tests/test_pages.py" in chosen("tests/overrides.py")
    assert {"tests/recipe/test_load.py", "tests/recipe/test_sweep.py"} <= set(chosen("pml_ext/recipe/__init__.py", 0))
    assert chosen("pyproject.toml") == ["tests"]
    with pytest.raises(SystemExit, match="no such file"):
        chosen("pml_ext/nothing.py")


def test_every_module_has_tests(chosen):
    """A file for which no test would be chosen has none, or the graph has lost its edges."""
    without = []
    for folder in ("pml_ext", "plugins"):
        for path in (ROOT / folder).rglob("*.py"):
            if path.name not in ("__init__.py", "__main__.py") and not chosen(path.relative_to(ROOT), 2):
                without.append(path.relative_to(ROOT).as_posix())
    assert without == []


def test_the_table_has_every_room(graph, monkeypatch):
    monkeypatch.setitem(FOR["table"].__globals__, "import_graph", lambda: graph)
    assert "| `pml_ext/recipe` | `tests/recipe` " in FOR["table"]()
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("| room | tests |")[2].partition("\n\n")[0]
    rows = dict(re.findall(r"^\| `([\w/]+)` \| (.*) \|$", page, re.MULTILINE))
    assert sorted(rows) == FOR["rooms"]()
    for folders in rows.values():
        named = re.findall(r"`([\w/]+)`", folders)
        assert named
        assert all((ROOT / each).is_dir() for each in named)
