"""The checks, named after what they protect; docstrings and messages say why it matters."""

from ..subject import CHECKS, SLOW, Check
from . import (  # noqa: F401 (importing registers them)
    building as building,  # the first, since its checks come first
    contract,
    kinds,
    objects,
    reference,
    samplers,
    situations,
    use,
)
from .building import check_constructor, check_docstring
from .contract import check_call_forms
from .situations import settings_of_process

# Checks whose failures explain others, which may follow from the same bug; the first one that fails is read first.
READ_FIRST = (
    "check_constructor",
    "check_call_forms",
    "check_mined_indices",
    "check_sampler",
    "check_reference",
    "check_tensors_are_registered",
    "check_globals_unchanged",
    "check_determinism",
    "check_calls_are_independent",
    "check_labels_are_used",
    "check_references",
    "check_mined_references",
    "check_distance",
    "check_order_does_not_matter",
    "check_names_of_classes",
    "check_classes_separate",
    "check_gradients",
    "check_degenerate_batches",
)

__all__ = [
    "CHECKS",
    "READ_FIRST",
    "SLOW",
    "Check",
    "check_call_forms",
    "check_constructor",
    "check_docstring",
    "settings_of_process",
]
