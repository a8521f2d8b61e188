"""A component as its user builds and finds it: the constructor, and the line that lists it."""

from __future__ import annotations

import random

import numpy as np
import torch

from ... import registry
from ..calling import error_summary
from ..subject import SkipCheck, Subject, applies_to


@applies_to(*registry.KINDS)
def check_constructor(subject: Subject) -> None:
    """The constructor must not raise, nor seed a global generator: all that is drawn later would be the same."""
    python = random.getstate()
    numpy = np.random.get_state()
    drawn = []
    try:
        for seed in (1, 2):
            random.seed(seed)
            np.random.seed(seed)
            torch.manual_seed(seed)
            try:
                subject.build()
            except (Exception, SystemExit) as error:
                raise AssertionError(f"its constructor raises {error_summary(error)}") from error
            drawn.append((random.random(), np.random.rand(), torch.rand(()).item()))
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
    for name, one, other in zip(("Python", "NumPy", "torch"), *drawn, strict=True):
        if one == other:
            text = f"its constructor seeds the global generator of {name}"
            raise AssertionError(f"{text}, for the whole process; give a generator of its own the seed")


@applies_to(*registry.KINDS)
def check_docstring(subject: Subject) -> None:
    """A registered component needs a line for ``pml-ext list``: the first of its docstring, or ``summary=``."""
    if subject.registered is None:
        raise SkipCheck("it is not registered")
    if subject.registered.summary or subject.registered.plugin == registry.PML:
        return
    text = vars(subject.registered.cls).get("__doc__")
    if not isinstance(text, str) or not text.strip():
        raise AssertionError('it has no docstring, which `pml-ext list` shows; write one, or Component(summary="...")')
