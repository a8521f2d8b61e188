"""The papers' files against the papers' tables, written down here a second time, and what recipes quote of them."""

import re
from pathlib import Path

import pytest

from pml_ext import registry
from pml_ext.experiment.recipe import papers, read_tables, tables_of_papers

OURS = ("angular", "cbml", "density", "pddm", "triplets")
# As printed; columns first.
PRINTED = {
    ("angular/2", "Stanford Car"): """NMI F1 R@1 R@2 R@4 R@8
T-II 54.3 19.6 46.3 59.9 71.4 81.3
NL 62.7 31.8 68.9 78.9 85.8 90.9
AL 62.4 31.8 71.3 80.7 87.0 91.8
NL&AL 63.2 32.2 71.4 81.4 87.5 92.1""",
    ("cbml/4", "CUB"): """R@1 R@2 R@4 R@8
ResNet-50, CBML-const 69.2 79.3 86.3 91.6
ResNet-50, CBML 69.9 80.4 87.2 92.5""",
    ("cbml/7", "CUB"): """R@1 R@2 R@4 R@8
MS [22] 65.3 75.7 84.4 90.4
CBML 63.8 74.5 83.3 89.7
CBML + MVC + Hard Mining 69.9 80.4 87.2 92.5""",
    ("density/1", "CUB-200-2011"): """NMI R@1 R@2 R@4 R@8
Tri [21] 50.99 39.57 51.74 63.35 74.14
DML-DA_np 59.67 51.45 63.01 74.38 83.78
DML-DA_con 62.32 55.64 66.96 77.92 86.23""",
    ("pddm/1", "CUB-200-2011"): """R@1
LMDM score 49.5
PDDM score 55.0
PDDM+Triplet 50.9
PDDM+Quadruplet 58.3""",
    ("triplets/1", "CUB-200-2011"): """F1 NMI
Hinge Loss, 1 Cluster .17 .35
Hinge Loss, 3 Clusters, Local .21 .35
Square Hinge Loss, 3 Clusters .17 .28
Soft Loss, 3 Clusters, Local .21 .35""",
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


@pytest.mark.parametrize(("name", "heading"), PRINTED)
def test_numbers_are_those_of_the_table(name, heading):
    head, *lines = PRINTED[name, heading].splitlines()
    for line in lines:
        row, numbers = re.fullmatch(r"(.+?)((?: \d*\.\d+)+)", line).groups()
        values = {column: cell for above, column, cell in printed(name).values(row) if above == heading}
        assert {column: values[column] for column in head.split()} == dict(
            zip(head.split(), map(float, numbers.split()), strict=True)
        )


@pytest.mark.parametrize("paper", TOTALS)
def test_tables_add_up(paper):
    for number, total in TOTALS[paper].items():
        numbers = [cell for row in printed(f"{paper}/{number}").rows for cell in row if isinstance(cell, float)]
        assert (len(numbers), round(sum(numbers), 2)) == total, number


def test_recipes_of_ours_quote_by_table_and_row_alone():
    plain = {}
    for name in registry.recipes():
        paper = read_tables(name).get("paper", {})
        if name.partition("/")[0] in OURS and not name.endswith("/frozen"):  # a trunk's features, of no paper
            assert paper, f"{name} names no paper"
            assert set(paper) <= {"table", "row", "column", "variants", "note"}, name
            if "/" not in paper["table"]:
                plain[name] = paper["table"]
    assert sorted(plain) == [f"{paper}/digits" for paper in OURS]  # no table of the papers, and no value


def test_each_table_and_each_row_has_a_recipe_or_a_reason():
    entries = [entry for entry in tables_of_papers() if entry["name"].partition("/")[0] in OURS]
    assert {"cbml/13", "angular/5", "pddm/2", "density/1", "triplets/1", "density/fig-4"} <= {
        e["name"] for e in entries
    }
    for entry in entries:
        assert any(entry["recipes"].values()) != bool(entry["reason"]), entry["name"]
        reasons = {row["row"]: row["reason"] for row in entry["rows"] if not row["recipes"]}
        short = {row: reason for row, reason in reasons.items() if len(reason.split()) <= 10}
        assert short == {}, entry["name"]


def test_what_is_called_measured_stands_in_the_readme():
    plugins = Path(__file__).parents[2] / "plugins"
    for entry in tables_of_papers():
        readme = plugins / f"pml_ext_{entry['name'].partition('/')[0]}" / "README.md"
        for recipe in entry["measured"]:
            assert recipe in [*entry["recipes"]["small"], *entry["recipes"]["full"]]
            assert re.search(rf"{recipe}(?![\w-])", readme.read_text("utf-8")), recipe
