"""The papers' files against the papers' tables, written down here a second time, and what recipes quote of them."""

import re
from pathlib import Path

import pytest

from pml_ext import registry
from pml_ext_train.recipe import papers, read_tables, tables_of_papers

OURS = ("angular", "cbml", "density", "pddm", "triplets")
# As printed, a row of each table; columns first.
PRINTED = {
    ("angular/2", "Stanford Car", "NL&AL"): "NMI 63.2 F1 32.2 R@1 71.4 R@2 81.4 R@4 87.5 R@8 92.1",
    ("cbml/4", "CUB", "ResNet-50, CBML-const"): "R@1 69.2 R@2 79.3 R@4 86.3 R@8 91.6",
    ("cbml/7", "CUB", "CBML + MVC + Hard Mining"): "R@1 69.9 R@2 80.4 R@4 87.2 R@8 92.5",
    ("density/1", "CUB-200-2011", "DML-DA_con"): "NMI 62.32 R@1 55.64 R@2 66.96 R@4 77.92 R@8 86.23",
    ("pddm/1", "CUB-200-2011", "PDDM+Quadruplet"): "R@1 58.3",
    ("triplets/1", "CUB-200-2011", "Hinge Loss, 3 Clusters, Local"): "F1 .21 NMI .35",
}
# How many numbers with a point each table has, and their sum, added up from the papers' texts.
TOTALS = {
    "angular": {"1": (36, 2064.9), "2": (36, 2272.3), "3": (36, 2668.7), "4": (20, 1644.7), "5": (5, 341.3)},
    "cbml": {
        "2": (265, 23868.2),
        "3": (176, 11589.7),
        "4": (144, 12876.3),
        "5": (60, 5402.7),
        "6": (8, 548.5),
        "7": (28, 2232.5),
        "8": (140, 7890.5),
        "9": (4, 63.0),
        "10": (27, 1256.4),
        "11": (27, 1329.7),
        "12": (16, 1120.3),
        "13": (4, 203.7),
    },
    "density": {"1": (189, 15145.5)},
    "pddm": {"1": (84, 6025.1), "2": (13, 364.7)},
    "triplets": {"1": (18, 4.55)},
}


def printed(name):
    paper, _, number = name.partition("/")
    return papers()[paper].tables[number]


@pytest.mark.parametrize(("name", "heading", "row"), PRINTED)
def test_numbers_are_those_of_the_table(name, heading, row):
    words = PRINTED[name, heading, row].split()
    values = {column: cell for above, column, cell in printed(name).values(row) if above == heading}
    wanted = dict(zip(words[::2], map(float, words[1::2]), strict=True))
    assert {column: values[column] for column in wanted} == wanted


@pytest.mark.parametrize("paper", TOTALS)
def test_rows_and_tables_add_up(paper):
    for number, total in TOTALS[paper].items():
        numbers = [cell for row in printed(f"{paper}/{number}").rows for cell in row if isinstance(cell, float)]
        assert (len(numbers), round(sum(numbers), 2)) == total, number


def test_our_recipes_quote_by_table_and_row():
    plain = {}
    for name in registry.recipes():
        paper = read_tables(name).get("paper", {})
        of_a_trunk = "/frozen" in name or "/blocks" in name  # pretrained, and in no paper
        if name.partition("/")[0] in OURS and not of_a_trunk:
            assert paper, f"{name} names no paper"
            assert set(paper) <= {"table", "row", "column", "variants", "note"}, name
            if "/" not in paper["table"]:
                plain[name] = paper["table"]
    assert sorted(plain) == [f"{paper}/digits" for paper in OURS]  # no table of the papers, and no value


def test_each_row_has_a_recipe_or_reason():
    entries = [entry for entry in tables_of_papers() if entry["name"].partition("/")[0] in OURS]
    assert {"cbml/13", "angular/5", "pddm/2", "density/1", "triplets/1", "density/fig-4"} <= {
        e["name"] for e in entries
    }
    for entry in entries:
        assert any(entry["recipes"].values()) != bool(entry["reason"]), entry["name"]
        reasons = {row["row"]: row["reason"] for row in entry["rows"] if not row["recipes"]}
        short = {row: reason for row, reason in reasons.items() if len(reason.split()) <= 10}
        assert short == {}, entry["name"]


def test_measured_rows_are_on_the_measurements_page():
    page = (Path(__file__).parents[2] / "docs" / "measurements.md").read_text("utf-8")
    for entry in tables_of_papers():
        for recipe in entry["measured"]:
            assert recipe in [*entry["recipes"]["small"], *entry["recipes"]["full"]]
            assert re.search(rf"{recipe}(?![\w-])", page), recipe
