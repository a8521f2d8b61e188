"""Listeners of a run, and warnings that reach them."""

import warnings

import pytest

from pml_ext.errors import TrainingWarning
from pml_ext.training.listener import Listener, Silence, forward_warnings


def test_silence_hears_everything_and_says_nothing(capsys):
    listener: Listener = Silence()
    listener.step("testing")
    listener.iteration(1, 2, 3, 0.5)
    listener.warn("careful")
    assert capsys.readouterr() == ("", "")


def test_warnings_of_training_are_passed_on_each_time():
    heard = []
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        with forward_warnings(heard.append):
            for _ in range(2):  # from one line
                warnings.warn("the loss says so", TrainingWarning, stacklevel=1)
            warnings.warn("of others", UserWarning, stacklevel=1)
        warnings.warn("afterwards", TrainingWarning, stacklevel=1)
    assert heard == ["the loss says so"] * 2
    assert [str(each.message) for each in shown] == ["of others", "afterwards"]


def test_an_error_restores_the_handling_of_warnings():
    before = warnings.showwarning, list(warnings.filters)
    with pytest.raises(ZeroDivisionError), forward_warnings(print):
        1 / 0  # noqa: B018
    assert (warnings.showwarning, list(warnings.filters)) == before
