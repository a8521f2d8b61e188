"""What recipes quote from their papers, against the papers' tables, written down here a second time."""

import re
import tomllib

import pytest

from pml_ext import registry

# The data sets that each paper reports on, by the names that recipes use.
DATA = {
    "angular": {"CUB-200-2011", "Stanford Cars", "Stanford Online Products"},
    "cbml": {"CUB-200-2011", "Cars196", "Stanford Online Products", "In-Shop", "ImageNet"},
    "density": {"CUB-200-2011", "Cars196", "Stanford Online Products"},
    "pddm": {"CUB-200-2011", "Cars196"},
    "triplets": {"CUB-200-2011"},
}
# In percent, as printed; columns first.
CARS = """nmi f1 recall_at_1 recall_at_2 recall_at_4 recall_at_8
T-II 54.3 19.6 46.3 59.9 71.4 81.3
NL 62.7 31.8 68.9 78.9 85.8 90.9
AL 62.4 31.8 71.3 80.7 87.0 91.8
NL&AL 63.2 32.2 71.4 81.4 87.5 92.1"""
MINING = """recall_at_1 recall_at_2 recall_at_4 recall_at_8
MS 65.3 75.7 84.4 90.4
MS + MVC 67.2 77.4 85.9 91.5
CBML 63.8 74.5 83.3 89.7
CBML + MVC + Hard Mining 69.9 80.4 87.2 92.5"""
BIRDS = """nmi recall_at_1 recall_at_2 recall_at_4 recall_at_8
Tri 50.99 39.57 51.74 63.35 74.14
NP 57.41 47.30 59.57 70.75 80.98
Con 60.07 52.01 65.16 75.71 84.25
DML-DA_tri 55.53 45.90 57.97 69.53 80.23
DML-DA_np 59.67 51.45 63.01 74.38 83.78
DML-DA_con 62.32 55.64 66.96 77.92 86.23"""
SCORES = """recall_at_1
LMDM score 49.5
PDDM score 55.0
PDDM+Triplet 50.9
PDDM+Quadruplet 58.3"""
CLUSTERS = """f1 nmi f1_3 nmi_3 f1_3_local nmi_3_local
hinge 17 35 24 39 21 35
squared-hinge 12 25 17 28 16 28
soft 15 31 21 35 21 35"""


def row(table, name):
    head, *lines = table.splitlines()
    whole = re.compile(re.escape(name) + r"((?: [\d.]+)+)")
    values = next(found[1] for line in lines if (found := whole.fullmatch(line)))
    return dict(zip(head.split(), map(float, values.split()), strict=True))


def change(base, method):
    """A row without the regularizer and one with it, as the recipes that sweep its weight name them."""
    both = {"without": row(BIRDS, base), "with": row(BIRDS, method)}
    return {f"{name}_{which}": values[name] for which, values in both.items() for name in ("nmi", "recall_at_1")}


def at(variants, *names):
    """``{variant: row}`` as a sweep names it."""
    return {f"{name}@{variant}": values[name] for variant, values in variants.items() for name in names}


PRINTED = {
    "angular/omniglot-small": row(CARS, "NL&AL"),
    "angular/omniglot-small-angular": row(CARS, "AL"),
    "angular/omniglot-small-n-pair": row(CARS, "NL"),
    "angular/omniglot-small-triplets": row(CARS, "T-II"),
    "angular/omniglot-small-alpha": {  # Table 4
        "recall_at_1@36.0": 69.9, "recall_at_1@42.0": 70.7, "recall_at_1@45.0": 71.4, "recall_at_1@48.0": 71.3,
        "recall_at_1@55.0": 69.0},
    "cbml/omniglot-small": row(MINING, "CBML + MVC + Hard Mining"),
    "cbml/multi-similarity-omniglot-small": row(MINING, "MS + MVC"),
    "cbml/omniglot-small-averaging": {  # Table 4, ResNet-50
        "recall_at_1@log": 69.9, "recall_at_1@sqrt": 70.0, "recall_at_1@const": 69.2},
    "cbml/omniglot-small-mvc-weight": {  # Table 6, the test set
        "recall_at_1@0.0": 63.8, "recall_at_1@0.1": 65.9, "recall_at_1@1.0": 69.9, "recall_at_1@2.0": 69.6},
    "density/omniglot-small": row(BIRDS, "DML-DA_con"),
    "density/omniglot-small-triplet": row(BIRDS, "DML-DA_tri"),
    "density/omniglot-small-n-pair": row(BIRDS, "DML-DA_np"),
    "density/omniglot-small-contrastive-lambda": change("Con", "DML-DA_con"),
    "density/omniglot-small-triplet-lambda": change("Tri", "DML-DA_tri"),
    "density/omniglot-small-n-pair-lambda": change("NP", "DML-DA_np"),
    "density/omniglot-small-sum": at({"0.0": row(BIRDS, "Con"), "20.0": row(BIRDS, "DML-DA_con")}, "nmi",
                                     "recall_at_1"),
    "pddm/omniglot-small": row(SCORES, "PDDM+Quadruplet")
                           | {"recall_at_1_score": row(SCORES, "PDDM score")["recall_at_1"]},
    "pddm/omniglot-small-as-printed": row(SCORES, "PDDM+Quadruplet"),
    "pddm/omniglot-small-triplet": row(SCORES, "PDDM+Triplet"),
    "pddm/omniglot-small-lmdm": {"recall_at_1_score": row(SCORES, "LMDM score")["recall_at_1"]},
    "pddm/omniglot-small-batch-size": {"recall_at_1@32": 55.7, "recall_at_1@64": 58.3},  # Sec. 4, discussion
    "triplets/omniglot-small": row(CLUSTERS, "hinge"),
    "triplets/omniglot-small-kinds": at({kind: row(CLUSTERS, kind) for kind in ("hinge", "squared-hinge", "soft")},
                                        "f1", "nmi", "f1_3", "nmi_3"),
    "triplets/omniglot-small-local": {
        f"{name}@{kind}": row(CLUSTERS, kind)[f"{name}_local"]
        for kind in ("hinge", "squared-hinge", "soft") for name in ("f1_3", "nmi_3")},
}  # fmt: skip


def quotations():
    """``{recipe: what its [paper] says}`` of the papers' plugins."""
    recipes = {name: tomllib.loads(file.read_text("utf-8")) for name, file in registry.recipes().items()}
    return {name: recipe["paper"] for name, recipe in recipes.items() if name.partition("/")[0] in DATA}


def numbers(paper):
    return {key: value for key, value in paper.items() if isinstance(value, float)}


@pytest.mark.parametrize("name", PRINTED)
def test_numbers_are_those_of_the_table(name):
    quoted = numbers(quotations()[name])
    assert quoted
    printed = {key: PRINTED[name].get(key) for key in quoted}
    assert {key: 100 * value for key, value in quoted.items()} == pytest.approx(printed, abs=1e-9)


def test_every_recipe_that_quotes_numbers_is_here():
    assert {name for name, paper in quotations().items() if numbers(paper)} == set(PRINTED)


def test_data_sets_are_those_of_the_paper():
    found = {name: paper["data"].partition(",")[0] for name, paper in quotations().items() if "data" in paper}
    assert {name: data for name, data in found.items() if data not in DATA[name.partition("/")[0]]} == {}
    assert not [name for name, paper in quotations().items() if numbers(paper) and "data" not in paper]
