"""A loss that stays 0: the warning, the error, and the pairs that the batches lack."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pml_ext.distributed import join, max_over_ranks
from pml_ext.errors import NothingToLearnError
from pml_ext.relations import Relation

from .batches import Batches, indices_of
from .epoch import Epoch, stopped
from .run import Run
from .stages import Stage

FIRST_LOSSES = 10  # of a stage, after which a loss that was always 0 is reported


def warn_of_zero_loss(epoch: Epoch) -> None:
    """Warn if the loss was 0 in a stage's first ten iterations, and name the missing pairs.

    A shorter epoch is checked at its end.
    """
    run = epoch.run
    stage = epoch.stage
    finished = len(epoch.losses)
    if run.epoch != stage.first or finished != min(FIRST_LOSSES, len(epoch.batches)):
        return
    if max_over_ranks(int(any(epoch.losses))):
        return
    reason = _missing_pairs(run, stage, epoch.batches[:finished]) or _none_adds(run, stage)
    iterations = f"the first {finished} iterations"
    if len(run.stages) > 1:
        iterations += f" of stage {run.stages.index(stage) + 1}"
    run.warn(f"the loss is 0 in all of {iterations}, so nothing is learned: {reason}")


def check_zero_loss(epoch: Epoch) -> None:
    """Raise TrainingError if the loss of every iteration of the run so far was 0.

    It is a NothingToLearnError if no pairs are missing. Runs that have learned something, start from other weights,
    or fill a memory are exempt.
    """
    run = epoch.run
    stage = epoch.stage
    if max_over_ranks(int(any(epoch.losses))):  # NaN, of an iteration that was left out, is no 0
        run.history.has_loss = True
    goes_on = run.history.has_loss or run.recipe.model.init is not None
    if goes_on or _memory_fills(run, stage):
        return
    missing = _missing_pairs(run, stage, epoch.batches[:FIRST_LOSSES])
    reason = missing or _none_adds(run, stage)
    if "; " not in reason:
        reason += "; take a larger margin, harder pairs, or another loss"
    iterations = run.stages.iterations_until(run.epoch)
    error = stopped(
        run,
        f"the loss was 0 in all {iterations} iterations, so nothing is learned: {reason}",
        f"(until the end of epoch {run.epoch})",
    )
    if missing:
        raise error
    raise NothingToLearnError(str(error), folder=run.folder)


def _memory_fills(run: Run, stage: Stage) -> bool:
    """Return whether the memory of a stage is not yet in use or not full."""
    memory = stage.table.loss.memory
    if memory is None:
        return False
    epochs = run.epoch + 1 - max(stage.first, memory.start_epoch)
    return epochs * stage.iterations * stage.batch_size < memory.size


def _none_adds(run: Run, stage: Stage) -> str:
    """Return why the loss may be 0 although no pairs are missing."""
    if run.data.listed is not None:
        return f"no listed {run.data.listed.kind[:-1]} adds to it: all may satisfy its margin"
    miner = stage.table.loss.miner
    unused = "" if miner is None else f"{miner.name} selects none that the loss can use, or "
    return f"the batches have both kinds of pairs, but {unused}none adds to the loss: all may satisfy its margin"


def _missing_pairs(run: Run, stage: Stage, batches: Batches) -> str:
    """Return which pairs or triplets are missing from the batches of all processes, or an empty string."""
    if run.data.listed is not None:
        return ""
    drawn = [indices_of(batch) for batch in batches]
    if run.processes > 1:
        drawn = [join({"indices": indices})["indices"] for indices in drawn]
    if stage.table.loss.memory is not None:  # its pairs come from several batches
        drawn = [torch.cat(drawn)]
    labels = run.labels("train").cpu()
    relation = run.relation if stage.table.loss.relation == "data" else None
    return missing_pairs([labels[indices].to(run.device) for indices in drawn], relation)


def missing_pairs(batches: Sequence[Tensor], relation: Relation | None) -> str:
    """Say which pairs or triplets no batch has, or return an empty string; labels are ``[B]`` each."""
    positive_pairs = negative_pairs = triplets = False
    for labels in batches:
        positive, negative = _pairs_of(labels, relation)
        positive.fill_diagonal_(False)
        positive_pairs |= bool(positive.any())
        negative_pairs |= bool(negative.any())
        triplets |= bool((positive.any(dim=1) & negative.any(dim=1)).any())
    if not positive_pairs:
        remedy = "let the sampler draw several images of each class (pml/m-per-class with m = 2 or more)"
        return f"no batch has two images of one class, so there are no positive pairs; {remedy}"
    if not negative_pairs:
        return "no batch has two classes, so there are no negative pairs; let the sampler draw several classes"
    if triplets:
        return ""
    return "no batch has an image with both a positive and a negative, so there are no triplets"


def _pairs_of(labels: Tensor, relation: Relation | None) -> tuple[Tensor, Tensor]:
    """Return the masks of positive and negative pairs of labels ``[B]``, each ``[B, B]``.

    Under a relation, a pair may be neither.
    """
    if relation is None:
        positive = labels[:, None] == labels[None]
        return positive, ~positive
    rows = relation.tensor(labels, len(labels), labels.device)
    weights = relation.matrix(rows, rows)
    return weights > 0, weights == 0
