"""The cache of the tests of this folder, and a plugin with a paper."""

import textwrap

import pytest

from pml_ext import registry

PLUGIN = """
    import importlib.resources
    from pml_ext.plugin import hookimpl

    @hookimpl
    def pml_ext_papers():
        return {"mine": importlib.resources.files(__name__) / "papers" / "mine.toml"}

    @hookimpl
    def pml_ext_recipes():
        return [importlib.resources.files(__name__) / "recipes"]
"""
PAPER = """
    title = "Mine"
    authors = "Me"
    year = 2026

    [data]
    Birds = "cub"
    Figures = "digits"

    [tables.2]
    title = "Two data sets"
    heads = ["Network", "Loss"]
    columns = { Birds = ["R@1", "NMI"], Figures = ["R@1", "time"] }
    phases = { "Small, Scores" = "learned_metric" }
    suffixes = { Threes = "_3" }
    without = { "*, Theirs" = "of another paper" }
    rows = [
      ["Small", "Mine", 50, 61.25, 97.5, "-"],
      ["Small", "Scores", 51, 62, 98.0, 3.0],
      ["Large", "Mine", 60, 70, 99, 12],
      ["Large", "Threes", 61, 71, "-", "-"],
      ["Large", "Theirs", 1, 2, 3, 4],
    ]

    [tables.fig-1]
    title = "A figure"
    without = "nothing is trained"
"""
RECIPE = """
    extends = "pml/contrastive/digits"
    {}
    [paper]
    {}
"""


@pytest.fixture
def mine(install_plugin):
    """A plugin of somebody else with a paper; writes recipes of it, or another file of the paper."""
    with registry.isolated():
        package = install_plugin("mine", PLUGIN)
        for folder in ("papers", "recipes"):
            (package / folder).mkdir()
        (package / "papers" / "mine.toml").write_text(textwrap.dedent(PAPER))

        def write(paper="", more="", name="one", text=None):
            if text is not None:
                (package / "papers" / "mine.toml").write_text(textwrap.dedent(text))
                return "mine/one"
            recipe = textwrap.dedent(RECIPE).format(textwrap.dedent(more), textwrap.dedent(paper))
            (package / "recipes" / f"{name}.toml").write_text(recipe)
            return str(package / "recipes" / f"{name}.toml")

        yield write
