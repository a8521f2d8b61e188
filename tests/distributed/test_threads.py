"""The number of threads of each process."""

import os

import pytest

from pml_ext.distributed.threads import threads_for


@pytest.mark.parametrize(("variable", "wanted"), [("3", 3), ("4,2", 4), (" 2 ", 2)])
def test_the_variable_of_openmp_goes_first(monkeypatch, variable, wanted):
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    assert threads_for(8) == wanted


@pytest.mark.parametrize("variable", ["", "0", "all"])
def test_processes_share_the_processors_among_threads(monkeypatch, variable):
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert [threads_for(processes) for processes in (1, 4, 16)] == [8, 2, 1]
