"""Queries side by side: those about which runs differ most, and runs that cannot be opened."""

import pytest
import torch

from pml_ext_compare.groups import groups_below
from pml_ext_compare.jobs import Executor
from pml_ext_compare.queries import NearestImages, compare_queries, queries_that_differ
from pml_ext_compare.runs import plans_of, rows_of
from pml_ext_train.recipe import load_recipes

from ...overrides import typed
from .examples import silent

RIGHT = [[True, True, False, False], [True, False, False, True], [True, False, False, True]]


def nearest_images(right):
    is_right = torch.tensor(right)
    return NearestImages(
        indices=torch.zeros(len(right), dtype=torch.int64), is_right=is_right, has_answer=torch.ones_like(is_right)
    )


def test_queries_that_runs_differ_about_come_first():
    by_name = {str(number): nearest_images(right) for number, right in enumerate(RIGHT)}
    assert set(queries_that_differ(by_name, count=2)) == {1, 3}
    assert sorted(queries_that_differ(by_name)) == [0, 1, 2, 3]
    assert queries_that_differ(by_name) == queries_that_differ(by_name)


@pytest.mark.usefixtures("without_report")
def test_two_runs_are_searched_and_drawn(recipe, tmp_path):
    plans = []
    for width in (4, 8):
        plans += plans_of(load_recipes(recipe, typed(["schedule.epochs=1", f"model.trunk.width={width}"])), tmp_path)
    groups = rows_of(plans, [], Executor(), silent, "cpu")
    base, other = (group.name for group in groups)
    (table,), (figure,) = compare_queries(groups, {"differences_from": base}, "cpu", None)
    (row,) = table.rows
    here_alone, base_alone, both = map(int, row[1:])
    queries = groups[0].all_runs()[0]["images"]["test"]["images"]
    recalls = [group.values("after", "recall_at_1")[0] for group in groups]
    assert row[0] == other
    assert [base_alone + both, here_alone + both] == pytest.approx([recall * queries for recall in recalls])
    assert figure.problem == ""
    assert figure.caption.endswith(f"1: {base}; 2: {other}.")


def test_a_run_that_cannot_be_opened_is_named(folder):
    groups = groups_below([folder / "runs/0"])
    tables, (problem,) = compare_queries(groups, {"differences_from": groups[0].name}, "cpu", None)
    assert tables == []
    assert problem.title == f"Queries of {groups[0].name}"
    assert problem.problem
