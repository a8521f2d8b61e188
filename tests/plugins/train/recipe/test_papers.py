"""Files of papers, what recipes quote of them, and listings of their tables."""

import json
import textwrap
from pathlib import Path

import pytest
import tomli_w
from typer.testing import CliRunner

from pml_ext.errors import ConfigError, PluginWarning
from pml_ext_train.cli.app import app_for
from pml_ext_train.cli.description import describe
from pml_ext_train.recipe import is_full, load_recipes, paper_values, papers, quoted, tables_of_papers, texts
from pml_ext_train.results.run_report import paper_tables

from ....overrides import typed

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
def mine(install_plugin, isolated_registry):
    """A plugin of somebody else with a paper; writes recipes of it, or another file of the paper."""
    package = install_plugin("mine", PLUGIN)
    for folder in ("papers", "recipes"):
        (package / folder).mkdir()
    (package / "papers" / "mine.toml").write_text(textwrap.dedent(PAPER))

    def write(paper="", more="", name="one", text=None):
        if text is not None:
            (package / "papers" / "mine.toml").write_text(textwrap.dedent(text))
            return "mine/one"
        recipe = package / "recipes" / f"{name}.toml"
        recipe.write_text(textwrap.dedent(RECIPE).format(textwrap.dedent(more), textwrap.dedent(paper)))
        return str(recipe)

    return write


def quotes(name, overrides=()):
    return {
        full: quoted(recipe.paper, recipe.data.name) for full, recipe in load_recipes(name, typed(overrides)).items()
    }


@pytest.mark.parametrize(
    ("overrides", "quoted_values"),
    [
        ([], [("Figures", "R@1", "recall_at_1", "after", 0.975, "97.50")]),
        (
            ["paper.column=Birds"],
            [
                ("Birds", "R@1", "recall_at_1", "after", 0.5, "50"),
                ("Birds", "NMI", "nmi", "after", 0.6125, "61.25"),
            ],
        ),
        (
            ["paper.row='Small, Scores'"],
            [
                ("Figures", "R@1", "recall_at_1", "learned_metric", 0.98, "98.00"),
                ("Figures", "time", "", "learned_metric", 0.03, "3.00"),
            ],
        ),
        (
            ["paper.row='Large, Threes'", "paper.column=Birds"],
            [
                ("Birds", "R@1", "recall_at_1_3", "after", 0.61, "61"),
                ("Birds", "NMI", "nmi_3", "after", 0.71, "71"),
            ],
        ),
        (["paper.row=[]"], []),
    ],
)
def test_a_recipe_names_table_and_row(mine, overrides, quoted_values):
    (values,) = quotes(mine('table = "mine/2"\nrow = "Small, Mine"'), overrides).values()
    assert [(each.heading, each.column, *each[3:]) for each in values] == quoted_values


def test_a_paper_has_data_sets_of_its_own(mine):
    (values,) = quotes(mine('table = "mine/2"\nrow = "Small, Mine"'), ["paper.column=Birds"]).values()
    assert texts(values) == ["Small, Mine, Birds: R@1 50, NMI 61.25"]
    assert is_full("mine/2", "cub")
    assert paper_values({"table": "mine/2"}, "cub")[1]
    assert not is_full("mine/2", "omniglot-small")


def test_choices_of_a_sweep_name_rows(mine):
    sweep = """
    [sweep.network.small]
    paper = { row.Network = "Small" }
    [sweep.network.large]
    paper = { row.Network = "Large" }
    [sweep.losses.mine]
    paper = { row.Loss = "Mine" }
    """
    assert [[each.row for each in own] for own in quotes(mine('table = "mine/2"', sweep)).values()] == [
        ["Small, Mine"],
        ["Large, Mine"] * 2,
    ]
    sweep = '[sweep]\n"loss.neg_margin" = [1.0, 2.0, 3.0]'
    paper = 'table = "mine/2"\nvariants = { "1.0" = "Small, Mine", "2.0" = ["Large, Mine", "Small, Mine"] }'
    assert [[each.row for each in own] for own in quotes(mine(paper, sweep)).values()] == [
        ["Small, Mine"],
        ["Large, Mine"] * 2 + ["Small, Mine"],
        [],
    ]


def test_plain_values_stay_as_they_are(mine):
    (recipe,) = load_recipes(mine('table = "Table 3, ours"\ndata = "CUB"\nrecall_at_1 = 0.5\n"nmi@0.1" = 0.4')).values()
    assert quoted(recipe.paper, "digits") == []
    own = {"table": "Table 3, ours", "data": "CUB", "recall_at_1": 0.5, "nmi@0.1": 0.4}
    assert recipe.as_dict()["paper"] == {"row": [], "column": "", "note": "", **own}
    (table,) = paper_tables(recipe, {"after": {}})
    assert table.rows == [["table", "Table 3, ours"], ["data", "CUB"], ["recall_at_1", "0.5"], ["nmi@0.1", "0.4"]]


@pytest.mark.parametrize(
    ("paper", "message"),
    [
        ('table = "mine/7"', "paper.table: no table of mine '7'; known: 2, fig-1"),
        ('table = "mine/2"\nrow = "Small, Yours"', "paper.row: mine/2: no row 'Small, Yours'; nearest: .*Small, Mine"),
        ('table = "mine/2"\nrow = { Netwrk = "Small" }', "mine/2: no head of rows 'Netwrk'; nearest: Network"),
        ('table = "mine/2"\ncolumn = "Bird"', "paper.column: no column of mine/2 'Bird'; nearest: Birds"),
        ('table = "Table 2"\nrow = "Mine"', "paper.row: goes with the table of a paper; no table 'Table 2'"),
        ('table = "mine/fig-1"\nrow = "Mine"', "paper.row: mine/fig-1: no row 'Mine'"),
        (
            'table = "cbml/5"\nrow = "64"',
            "paper.column: missing; cbml/5 has CUB, Cars, In-Shop, but not digits",
        ),
    ],
)
def test_what_is_not_in_the_file_is_refused(mine, paper, message):
    with pytest.raises(ConfigError, match=message):
        load_recipes(mine(paper))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('97.5, "-"]', "97.5]", r"tables.2: found 5 cells in the row \['Small', 'Mine'\], wanted 6, one per column"),
        ('97.5, "-"]', '97.5, "none"]', "found 'none' in the row .*; wanted a number, or '-' for none"),
        ("year = 2026", "", "year: missing, and there is no default"),
        ("title = ", "title ", "not valid TOML"),
    ],
)
def test_a_file_that_is_none_of_a_paper(mine, old, new, message):
    file = mine('table = "mine/2"\nrow = "Small, Mine"')
    mine(text=PAPER.replace(old, new, 1))
    with pytest.raises(ConfigError, match=f"mine.toml: .*{message}"):
        load_recipes(file)
    with pytest.warns(PluginWarning, match="the paper 'mine' is left out: "):
        assert {"cbml", "angular"} <= set(papers())  # others are not hidden
    assert load_recipes("cbml/omniglot-small")


def test_the_report_compares_with_the_papers_values(mine):
    (recipe,) = load_recipes(mine('table = "mine/2"\nrow = ["Small, Mine", "Small, Scores"]\nnote = "ours"')).values()
    about, values = paper_tables(recipe, {"after": {"recall_at_1": 0.9}, "learned_metric": {"recall_at_1": 0.8}})
    assert {row[0]: row[1] for row in about.rows} == {
        "paper": "Me (2026). Mine. ",
        "table": "mine/2: Two data sets",
        "note": "ours",
    }
    assert values.rows == [
        ["Small, Mine, Figures, R@1", "97.5", "90.0"],
        ["Small, Scores, Figures, R@1", "98.0", "80.0"],
        ["Small, Scores, Figures, time", "3.0", ""],
    ]


def test_a_changed_paper_leaves_runs_readable(mine, tmp_path):
    (recipe,) = load_recipes(mine('table = "mine/2"\nrow = "Small, Mine"')).values()
    file = tmp_path / "recipe.toml"
    file.write_text(tomli_w.dumps(recipe.as_dict() | {"run": {"recipe": "mine/one"}}))
    mine(text=PAPER.replace('"Small", "Mine"', '"Tiny", "Mine"'))
    (read,) = load_recipes(str(file)).values()
    (about,) = paper_tables(read, {})
    assert {row[0]: row[1] for row in about.rows} == {"table": "mine/2", "row": "Small, Mine"}


@pytest.mark.nightly
def test_a_table_is_shown_as_printed(mine):
    mine('table = "mine/2"\nrow = "Small, Mine"', name="full")
    (shown,) = describe("mine/2")
    assert shown["kind"] == "table"
    assert (
        ", ".join(shown["table"]["columns"]) == "Network, Loss, Birds R@1, Birds NMI, Figures R@1, Figures time, recipe"
    )
    assert shown["table"]["rows"][0] == ["Small", "Mine", "50", "61.25", "97.50", "-", "mine/full"]
    assert shown["table"]["rows"][4][-1] == "of another paper"
    assert (
        "Small, Mine, Figures: R@1 97.50"
        in CliRunner().invoke(app_for(["show"]), ["show", "mine/full"], env={"COLUMNS": "200"}).stdout
    )
    both = describe("cbml/7")
    assert [each["kind"] for each in both] == ["table", "recipe"]
    for each in both:
        assert describe("cbml/7", each["kind"]) == [each]


# Listings


def test_tables_are_listed_with_recipes_and_reasons(mine):
    mine('table = "mine/2"\nrow = "Small, Mine"', name="full")
    mine('table = "mine/2"\nrow = "Large, Mine"\ncolumn = "Birds"', '[data]\nname = "digits-unseen"', name="small")
    mine('table = "mine/2', name="broken")
    table, figure = (entry for entry in tables_of_papers() if entry["name"].startswith("mine/"))
    assert table["recipes"] == {"full": ["mine/full"], "small": ["mine/small"]}
    assert [(row["row"], row["recipes"], row["reason"]) for row in table["rows"]] == [
        ("Small, Mine", ["mine/full"], ""),
        ("Small, Scores", [], ""),
        ("Large, Mine", ["mine/small"], ""),
        ("Large, Threes", [], ""),
        ("Large, Theirs", [], "of another paper"),
    ]
    assert (figure["name"], figure["reason"]) == ("mine/fig-1", "nothing is trained")
    told = CliRunner().invoke(app_for(["list"]), ["list", "tables", "--json"])
    assert next(entry for entry in json.loads(told.stdout) if entry["name"] == "mine/2").items() >= table.items()
    told = CliRunner().invoke(app_for(["list"]), ["list", "tables"], env={"COLUMNS": "250"})
    (line,) = (line for line in told.stdout.splitlines() if line.startswith("mine/fig-1"))
    assert "nothing is trained" in line


def test_a_wrong_paper_hides_no_other_recipe(mine):
    mine('table = "mine/2"\nrow = "Small, Mine"', name="right")
    Path(mine("", name="wrong")).write_text('extends = "pml/contrastive/digits"\npaper = "Me et al."\n')
    Path(mine("", name="wrong-data")).write_text('data = "digits"\n[paper]\ntable = "mine/2"\n')
    assert "mine/right" in {table["name"]: table for table in tables_of_papers()}["mine/2"]["recipes"]["full"]
