"""Checks of a run: its validation images and batch norms, a loss that stays 0, and collapse."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pml_ext.distributed import join, max_over_ranks
from pml_ext.errors import DataError, NothingToLearnError
from pml_ext.evaluation.listed import tuple_metrics
from pml_ext.pairwise import ListedTuples
from pml_ext.relations import Relation

from ..data.splits import classes_of_two
from ..networks import is_batch_norm, is_pretrained, parts_named
from ..recipe.schema import frozen_patterns
from .batches import Batches, indices_of
from .epoch import Epoch, stopped
from .run import Run
from .stages import Stage

# Batches of 16 to 128 images were measured, and their own statistics were worse than ImageNet's; equal numbers
# of steps did equal harm (python -m benchmarks.batch_norm, docs/measurements.md). Larger ones were not measured.
LARGEST_MEASURED = 128

FIRST_LOSSES = 10  # of a stage, after which a loss that was always 0 is reported

COLLAPSED = 0.99  # mean cosine similarity of different images above which embeddings may have collapsed
RESOLUTION = 1e-6  # a search in float32 cannot distinguish closer cosine similarities
QUERIES_FOR_COLLAPSE = 256


def check_validation(run: Run) -> None:
    """Raise DataError if no validation class has two images."""
    has_labels = run.data.listed is None and run.relation is None  # a relation may join different classes
    if run.recipe.evaluation.select is None or "validation" not in run.splits or not has_labels:
        return
    images = run.images("validation")
    if classes_of_two(images.labels) == 0:
        raise DataError(
            f"evaluation.select: no class has two of the {len(images)} validation {run.data.noun}, so "
            "epochs cannot be compared. Validate on two of a class, or leave out select, select_on and validation"
        )


def warn_of_small_batches(run: Run) -> None:
    """Warn if a pretrained trunk's batch norms see small batches, except in papers' recipes."""
    model = run.recipe.model
    if model.freeze_batch_norm or not is_pretrained(model.trunk.settings) or run.recipe.paper is not None:
        return
    sizes = [_normalized_together(run, stage) for stage in run.stages if _trains_batch_norms(run, stage)]
    if sizes and min(sizes) <= LARGEST_MEASURED:
        run.warn(
            f"batch norms of the pretrained trunk {model.trunk.name} see {min(sizes)} images at once; up to "
            f"{LARGEST_MEASURED}, pretrained statistics are better. Keep them: --set model.freeze_batch_norm=true"
        )


def _normalized_together(run: Run, stage: Stage) -> int:
    """Number of images that a batch norm normalizes together."""
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


def warn_of_zero_loss(epoch: Epoch) -> None:
    """Warn if the loss was 0 in a stage's first ten iterations, and name the missing pairs."""
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
    """Raise TrainingError if the loss was 0 in all iterations so far.

    It is a NothingToLearnError if no pairs are missing. Runs that start from other weights, or fill a memory, are
    exempt.
    """
    run = epoch.run
    stage = epoch.stage
    if max_over_ranks(int(any(epoch.losses))):  # NaN, of an iteration that was left out, is no 0
        run.history.has_loss = True
    if run.history.has_loss or run.recipe.model.init is not None or _memory_fills(run, stage):
        return
    missing = _missing_pairs(run, stage, epoch.batches[:FIRST_LOSSES])
    reason = missing or f"{_none_adds(run, stage)}; take a larger margin, harder pairs, or another loss"
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
    """Whether a stage's memory is not yet in use or not full."""
    memory = stage.table.loss.memory
    if memory is None:
        return False
    epochs = run.epoch + 1 - max(stage.first, memory.start_epoch)
    return epochs * stage.iterations * stage.batch_size < memory.size


def _none_adds(run: Run, stage: Stage) -> str:
    if run.data.listed is not None:
        return f"no listed {run.data.listed.kind[:-1]} adds to it: all may satisfy its margin"
    miner = stage.table.loss.miner
    unused = "" if miner is None else f"{miner.name} selects none that the loss can use, or "
    return f"the batches have both kinds of pairs, but {unused}none adds to the loss: all may satisfy its margin"


def _missing_pairs(run: Run, stage: Stage, batches: Batches) -> str:
    """Name the pairs missing from the batches of all processes, if any."""
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
    """Name the pairs or triplets that no batch has, if any; labels are ``[B]`` each."""
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
    if not triplets:
        return (
            "no batch has an image with both a positive and a negative, so there are no triplets; take larger batches "
            "or another loss"
        )
    return ""


def _pairs_of(labels: Tensor, relation: Relation | None) -> tuple[Tensor, Tensor]:
    """Masks of positive and negative pairs, ``[B, B]``; related pairs may be neither."""
    if relation is None:
        positive = labels[:, None] == labels[None]
        return positive, ~positive
    rows = relation.tensor(labels, len(labels), labels.device)
    weights = relation.matrix(rows, rows)
    return weights > 0, weights == 0


def warn_of_collapse(epoch: Epoch, embeddings: Tensor) -> None:
    """Warn if an epoch's last batch has collapsed, unless the epoch before had, too."""
    run = epoch.run
    indices = indices_of(epoch.batches[-1])
    images = run.data.training_images
    if run.data.listed is not None:
        similarity = collapse(embeddings, run.data.listed.among(indices, len(images)))
    else:
        labels = images.labels if run.pseudo_labels is None else run.pseudo_labels
        similarity = collapse(embeddings, labels[indices])
    if similarity is not None and not run.history.collapsed:
        run.warn(
            f"epoch {run.epoch}: the embeddings collapse to one point (mean cosine similarity of different "
            f"images {similarity:.3f}). Try a warm start, a lower learning rate or easier pairs"
        )
    run.history.collapsed = similarity is not None


def collapse(embeddings: Tensor, labels: Any) -> float | None:
    """Mean cosine similarity of embeddings ``[N, D]`` that collapsed to one point, or None.

    It is above :data:`COLLAPSED`, and the nearest image has the same class less often than halfway from chance to
    always.
    ``labels`` may be listed pairs or triplets, whose chance is one half.
    """
    points = nn.functional.normalize(embeddings.detach().to("cpu", torch.float64))  # MPS has no float64
    count = len(points)
    if count < 2:
        return None
    similarity = float((points.sum(dim=0).square().sum() - count) / (count * (count - 1)))
    if not similarity > COLLAPSED:  # NaN is not a collapse
        return None
    if isinstance(labels, ListedTuples):
        return similarity if _is_near_chance(points, labels) else None
    classes = torch.as_tensor(labels).cpu()
    rows = torch.linspace(0, count - 1, min(count, QUERIES_FOR_COLLAPSE)).long()
    values = (points[rows] @ points.T).scatter_(1, rows[:, None], -torch.inf)
    nearest = values >= values.amax(dim=1, keepdim=True) - RESOLUTION
    same = (classes[rows][:, None] == classes).scatter_(1, rows[:, None], False)
    chance = float(same.double().mean()) * count / (count - 1)
    right = float(((same & nearest).sum(dim=1) / nearest.sum(dim=1)).mean())
    has_collapsed = chance == 0 or right < (1 + chance) / 2
    return similarity if has_collapsed else None


def _is_near_chance(points: Tensor, tuples: ListedTuples) -> bool:
    """Whether listed tuples are right less often than halfway from chance to always."""
    if not len(tuples) or (tuples.same is not None and not 0 < int(tuples.same.sum()) < len(tuples)):
        return True
    metrics = tuple_metrics(points, tuples)
    return metrics.get("triplet_accuracy", metrics.get("verification_roc_auc", 0.0)) < 0.75
