"""Components with one bug each, of the kinds that authors of plugins make, and the correct ones that they derive from.

``python -m tests.testing.planted`` prints which of the fast checks finds each, and the share that is found.
"""

from . import correct, losses, others
from .correct import loop
from .table import PLANTED, REFERENCE, assert_found_and_named, failing, planted_for

__all__ = [
    "PLANTED",
    "REFERENCE",
    "assert_found_and_named",
    "correct",
    "failing",
    "loop",
    "losses",
    "others",
    "planted_for",
]
