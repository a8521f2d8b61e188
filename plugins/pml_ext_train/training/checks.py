"""Checks before training: validation images, and the batch size of batch norms."""

from __future__ import annotations

from torch import nn

from pml_ext.errors import DataError

from ..data.splits import classes_of_two
from ..networks import is_batch_norm, is_pretrained, parts_named
from ..recipe.schema import frozen_patterns
from .run import Run
from .stages import Stage

# Batches of 16 to 128 images were measured, and their own statistics were worse than ImageNet's; equal numbers
# of steps did equal harm (python -m benchmarks.batch_norm, docs/measurements.md). Larger ones were not measured.
LARGEST_MEASURED = 128


def check_validation(run: Run) -> None:
    """Raise DataError if no validation image has another image of its class."""
    has_labels = run.data.listed is None and run.relation is None  # a relation may join different classes
    if run.recipe.evaluation.select is None or "validation" not in run.splits or not has_labels:
        return
    images = run.images("validation")
    if classes_of_two(images.labels) == 0:
        raise DataError(
            f"evaluation.select: no class has two of the {len(images)} validation {run.data.noun}, so "
            "epochs cannot be compared. Validate on two or more of a class, or leave out "
            "evaluation.select, select_on and validation"
        )


def warn_of_small_batches(run: Run) -> None:
    """Warn if batch norms of a pretrained trunk normalize small batches.

    Recipes of papers follow their paper, without a warning.
    """
    model = run.recipe.model
    if model.freeze_batch_norm or not is_pretrained(model.trunk.settings) or run.recipe.paper is not None:
        return
    sizes = [_normalized_together(run, stage) for stage in run.stages if _trains_batch_norms(run, stage)]
    if sizes and min(sizes) <= LARGEST_MEASURED:
        run.warn(
            f"batch norms of the pretrained trunk {model.trunk.name} see {min(sizes)} images at once; up to "
            f"{LARGEST_MEASURED}, its pretrained statistics gave better results. To keep them, type --set "
            "model.freeze_batch_norm=true"
        )


def _normalized_together(run: Run, stage: Stage) -> int:
    """Return the number of images that a batch norm normalizes together."""
    micro_batch = run.recipe.engine.micro_batch
    images = stage.batch_size * run.recipe.data.views
    if run.data.listed is not None:  # batch_size counts pairs or triplets
        images *= run.data.listed.rows.shape[1]
    return images if micro_batch is None else min(images, micro_batch * run.processes)


def _trains_batch_norms(run: Run, stage: Stage) -> bool:
    patterns = frozen_patterns(run.recipe.model.freeze) + frozen_patterns(stage.table.freeze)
    frozen: set[nn.Module] = set()
    if run.recipe.model.lora is None:
        for part in parts_named(run.trunk, patterns):
            frozen.update(part.modules())
    trained = [part for part in run.inputs.trained_trunk(stage).modules() if part not in frozen]
    return any(is_batch_norm(part) for part in trained)
