"""Listeners of a run, and warnings that reach them."""

import logging
import warnings

from pml_ext.errors import TrainingWarning
from pml_ext_train.training.listener import forward_notes, forward_warnings


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


def test_notes_of_components_are_passed_on():
    heard = []
    logger = logging.getLogger("pml_ext")
    with forward_notes(heard.append):
        logger.info("the loss uses %s", "both widths")
        logger.debug("details")
    logger.info("afterwards")
    assert heard == ["the loss uses both widths"]
    assert not logger.handlers
