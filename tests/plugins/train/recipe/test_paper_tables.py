"""Listings of the tables of papers."""

import json
from pathlib import Path

from typer.testing import CliRunner

from pml_ext_train.cli.app import app_for
from pml_ext_train.recipe import tables_of_papers


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
    text = 'extends = "pml/contrastive/digits"\npaper = "Me et al."\n'
    Path(mine("", name="wrong")).write_text(text)
    Path(mine("", name="wrong-data")).write_text('data = "digits"\n[paper]\ntable = "mine/2"\n')
    listed = {table["name"]: table for table in tables_of_papers()}
    assert "mine/right" in listed["mine/2"]["recipes"]["full"]
