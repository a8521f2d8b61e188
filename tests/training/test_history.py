"""The history of a run, as it begins."""

import math

from pml_ext.training.history import RunHistory


def test_runs_do_not_share_what_they_collect():
    one = RunHistory()
    other = RunHistory()
    one.warnings.append("careful")
    one.metrics["raw"] = {}
    one.best["epoch"] = 3
    assert (other.warnings, other.metrics, other.best) == ([], {}, {"epoch": None, "value": -math.inf})
