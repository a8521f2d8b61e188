"""What plugins name beside components is found, and checked by what tools and the layer know of its kind."""

import pytest

from pml_ext import registry
from pml_ext.testing import Named
from pml_ext_train.cli.targets import CONTRACTS, check_named, checks_of_tools, find_named

CHECKS = """
from pml_ext.plugin import hookimpl
from pml_ext.testing import SkipCheck


def check_size(named):
    if named.value is None:
        raise SkipCheck("nothing to try")
    assert named.value < 5, "it is too large"
    return "tried"


@hookimpl
def pml_ext_checks():
    return {"store": check_size}
"""


@pytest.mark.parametrize(
    ("value", "status", "text"),
    [(3, "passed", "tried"), (7, "failed", "too large"), (None, "skipped", "nothing to try")],
)
def test_a_plugin_checks_a_kind_of_its_own(install_plugin, isolated_registry, value, status, text):
    install_plugin("sizes", CHECKS)
    results = {result.check: result for result in check_named(Named("store", "mine", value, "mine"))}
    assert results["check_size"].status == status
    assert text in results["check_size"].text


def test_a_blocked_plugin_adds_no_check(isolated_registry, monkeypatch):
    monkeypatch.setenv("PML_EXT_BLOCK", "stores")
    assert [check.__name__ for check in checks_of_tools("store")] == []


METRICS = """
from pml_ext.plugin import hookimpl
def first(query_labels, **kwargs):
    'The label of the first image.'
    return float(query_labels[0])
def none(**kwargs):
    'Nothing.'
    return float("nan")
def right(query_labels, knn_labels, **kwargs):
    'Precision at 1.'
    return (knn_labels[:, 0] == query_labels).float().mean()
@hookimpl
def pml_ext_metrics():
    return {"first": first, "none": none, "right_ones": right}
"""


@pytest.mark.usefixtures("isolated_registry")
def test_the_metrics_of_a_plugin_are_checked(install_plugin, pml_ext_command):
    install_plugin("measures", METRICS)
    texts = {}
    for named in find_named("measures"):
        (_, result) = check_named(named)
        texts[named.name] = (result.status, result.text)
    assert "it depends on the order of the images" in texts["first"][1]
    assert texts["none"][1] == "it gives nan for six classes of five images"
    assert texts["right_ones"][0] == "passed"
    told = pml_ext_command("check", "measures")
    assert told.returncode == 1
    assert "first (metric)" in told.stdout
    assert set(CONTRACTS) <= {*registry.hooks.HOOK_OF}
