"""What ends a run or is worth a warning: values that are not finite, a loss of 0, embeddings that collapse."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..data.splits import classes_of_two
from ..distributed import join, max_over_ranks
from ..errors import DataError, TrainingError
from ..evaluation.listed import tuple_metrics
from ..networks.modes import is_batch_norm
from ..networks.pretrained import is_pretrained
from ..networks.trunks import parts_named
from ..pairwise import ListedTuples
from ..recipe.schema import frozen_patterns
from ..relations import Relation
from .batches import Batches, indices_of
from .engine import first_nonfinite_weight
from .run import Run
from .stages import Stage

# Batches of 16 to 128 images were measured, and all were worse by their own statistics than by those of ImageNet; equal
# numbers of steps did equal harm (python -m benchmarks.batch_norm, docs/pretrained.md). Larger ones were not measured.
LARGEST_MEASURED = 128
COLLAPSED = 0.99  # mean cosine similarity of different images above which embeddings may have collapsed
RESOLUTION = 1e-6  # a search in float32 cannot distinguish closer cosine similarities
QUERIES_FOR_COLLAPSE = 256
FIRST_LOSSES = 10  # of a stage, after which a loss that was always 0 is reported


def check_validation(run: Run) -> None:
    """Raise DataError if the epoch is chosen on validation images of which none can find another of its class."""
    has_labels = run.data.listed is None and run.relation is None  # a relation may join different classes
    if run.recipe.evaluation.select is None or "validation" not in run.splits or not has_labels:
        return
    images = run.images("validation")
    if classes_of_two(images.labels) == 0:
        raise DataError(
            f"evaluation.select: no class has two of the {len(images)} {run.data.noun} to validate with, so that all "
            "epochs are equal; wanted two or more of a class, or leave out evaluation.select, select_on and validation"
        )


def warn_of_small_batches(run: Run) -> None:
    """Warn if the batch norms of a pretrained trunk take their statistics from small batches in some stage.

    A recipe of a paper follows its paper, without a warning.
    """
    model = run.recipe.model
    if model.freeze_batch_norm or not is_pretrained(model.trunk.settings) or run.recipe.paper is not None:
        return
    sizes = [_normalized_together(run, stage) for stage in run.stages if _trains_batch_norms(run, stage)]
    if sizes and min(sizes) <= LARGEST_MEASURED:
        run.warn(
            f"the batch norms of the pretrained trunk {model.trunk.name} normalize by {min(sizes)} images; up to "
            f"{LARGEST_MEASURED}, the statistics that came with the weights gave better results. To keep these, type "
            "--set model.freeze_batch_norm=true"
        )


def _normalized_together(run: Run, stage: Stage) -> int:
    """Return the number of images whose statistics a batch norm joins: of a batch, or of a forward pass of it."""
    micro_batch = run.recipe.engine.micro_batch
    images = stage.batch_size * run.recipe.data.views
    if run.data.listed is not None:  # batch_size counts pairs or triplets
        images *= run.data.listed.rows.shape[1]
    if micro_batch is None:
        return images
    return min(images, micro_batch * run.processes)


def _trains_batch_norms(run: Run, stage: Stage) -> bool:
    """Return whether a stage trains a part of the trunk that has batch norms."""
    patterns = frozen_patterns(run.recipe.model.freeze) + frozen_patterns(stage.table.freeze)
    frozen: set[nn.Module] = set()
    if run.recipe.model.lora is None:
        for part in parts_named(run.trunk, patterns):
            frozen.update(part.modules())
    trained = [part for part in run.trained_trunk(stage).modules() if part not in frozen]
    return any(is_batch_norm(part) for part in trained)


def stopped(run: Run, problem: object, when: str) -> TrainingError:
    """Return the error of a run that cannot go on; the problem may have a remedy after a semicolon."""
    what, _, remedy = str(problem).partition("; ")
    if run.checkpoint("last").exists():
        kept = f"the checkpoint of epoch {run.epoch - 1} is kept"
    else:
        kept = "there is no checkpoint yet"
    if remedy:
        advice = remedy[:1].upper() + remedy[1:]
    else:
        advice = "Try a lower optimizer.lr"
    return TrainingError(f"{what} {when}; {kept}. {advice}")


def check_weights(run: Run, stage: Stage) -> None:
    """Raise TrainingError if a weight became NaN or infinite in an epoch."""
    bad = first_nonfinite_weight({"trunk": run.trunk, "embedder": run.embedder}, stage.loss)
    if bad is not None:
        name, value = bad
        raise stopped(run, f"the {name} became {value}", f"in epoch {run.epoch}")


def warn_of_collapse(run: Run, embeddings: Tensor, indices: Any) -> None:
    """Warn if the embeddings of an epoch's last batch have collapsed, and those of the epoch before had not."""
    if run.data.listed is not None:
        similarity = collapse_of_listed(embeddings, run.data.listed.among(indices, len(run.data.training_images)))
    elif run.pseudo_labels is None:
        similarity = collapse(embeddings, run.data.training_images.labels[indices])
    else:
        similarity = collapse(embeddings, run.pseudo_labels[indices])
    if similarity is not None and not run.history.collapsed:
        run.warn(
            f"epoch {run.epoch}: the embeddings collapse to one point (mean cosine similarity of different "
            f"images {similarity:.3f}); a warm start, a lower learning rate or easier pairs may help"
        )
    run.history.collapsed = similarity is not None


def collapse(embeddings: Tensor, labels: Any) -> float | None:
    """Return the mean cosine similarity of different images if embeddings ``[N, D]`` have collapsed to one point.

    It is then above :data:`COLLAPSED`, and the nearest other image is of the same class less often than halfway from
    chance to always; images that a search in float32 cannot tell apart share a rank. None for no collapse.
    """
    points = nn.functional.normalize(embeddings.detach().to("cpu", torch.float64))  # MPS has no float64
    similarity = _mean_similarity(points)
    if not similarity > COLLAPSED:  # NaN is not a collapse
        return None
    count = len(points)
    classes = torch.as_tensor(labels).cpu()
    rows = torch.linspace(0, count - 1, min(count, QUERIES_FOR_COLLAPSE)).long()
    values = (points[rows] @ points.T).scatter_(1, rows[:, None], -torch.inf)
    nearest = values >= values.amax(dim=1, keepdim=True) - RESOLUTION
    same = (classes[rows][:, None] == classes).scatter_(1, rows[:, None], False)
    chance = float(same.double().mean()) * count / (count - 1)
    right = float(((same & nearest).sum(dim=1) / nearest.sum(dim=1)).mean())
    has_collapsed = chance == 0 or right < (1 + chance) / 2
    return similarity if has_collapsed else None


def collapse_of_listed(embeddings: Tensor, tuples: ListedTuples) -> float | None:
    """Return :func:`collapse` of embeddings ``[N, D]`` with listed pairs or triplets.

    Chance is half of the triplets in the right order, or half of all two pairs of both kinds.
    """
    points = nn.functional.normalize(embeddings.detach().to("cpu", torch.float64))
    similarity = _mean_similarity(points)
    if not similarity > COLLAPSED:
        return None
    has_order = tuples.same is None or 0 < int(tuples.same.sum()) < len(tuples)
    if not len(tuples) or not has_order:
        return similarity
    metrics = tuple_metrics(points, tuples)
    right = metrics.get("triplet_accuracy", metrics.get("verification_roc_auc", 0.0))
    return similarity if right < 0.75 else None


def _mean_similarity(points: Tensor) -> float:
    """Return the mean cosine similarity of different points of length 1; NaN for fewer than two."""
    count = len(points)
    if count < 2:
        return math.nan
    return float((points.sum(dim=0).square().sum() - count) / (count * (count - 1)))


def warn_of_zero_loss(run: Run, stage: Stage, losses: list[float], batches: Batches) -> None:
    """Warn if the loss was 0 in all of a stage's first iterations, and say which pairs their batches lack.

    Does nothing but after the tenth iteration of a stage, or the last one of an epoch with fewer.
    """
    if run.epoch != stage.first or len(losses) != min(FIRST_LOSSES, len(batches)):
        return
    if max_over_ranks(int(any(losses))):
        return
    reason = _why_zero(run, stage, batches[: len(losses)])
    iterations = f"the first {len(losses)} iterations"
    if len(run.stages) > 1:
        iterations += f" of stage {run.stages.index(stage) + 1}"
    run.warn(f"the loss is 0 in all of {iterations}, so nothing is learned: {reason}")


def check_zero_loss(run: Run, stage: Stage, losses: list[float], batches: Batches) -> None:
    """Raise TrainingError at the end of an epoch if the loss of every iteration of the run so far was 0.

    A run that has learned something, or goes on from another run's weights, may have a loss of 0. A memory has the
    time to fill once.
    """
    if max_over_ranks(int(any(losses))):  # NaN, of an iteration that was left out, is no 0
        run.history.has_loss = True
    goes_on = run.history.has_loss or run.recipe.model.init is not None
    if goes_on or _memory_fills(run, stage):
        return
    reason = _why_zero(run, stage, batches[:FIRST_LOSSES])
    if "; " not in reason:
        reason += "; take a larger margin, harder pairs, or another loss"
    iterations = run.stages.iterations_until(run.epoch)
    problem = f"the loss was 0 in all {iterations} iterations, so nothing is learned: {reason}"
    raise stopped(run, problem, f"(until the end of epoch {run.epoch})")


def _memory_fills(run: Run, stage: Stage) -> bool:
    """Return whether a stage has a memory that is not in use yet, or not full."""
    memory = stage.table.loss.memory
    if memory is None:
        return False
    epochs = run.epoch + 1 - max(stage.first, memory.start_epoch)
    return epochs * stage.iterations * stage.batch_size < memory.size


def _why_zero(run: Run, stage: Stage, batches: Batches) -> str:
    """Return why a loss may be 0 for batches."""
    if run.data.listed is not None:
        return f"no listed {run.data.listed.kind[:-1]} adds to it, as when all satisfy its margin"
    reason = _missing_pairs(run, stage, batches)
    if not reason:
        unused = "none adds to the loss, as when all satisfy its margin"
        if stage.table.loss.miner is not None:
            unused = f"{stage.table.loss.miner.name} selects none that the loss can use, or {unused}"
        reason = f"the batches have positive and negative pairs, but {unused}"
    return reason


def _missing_pairs(run: Run, stage: Stage, batches: Batches) -> str:
    """Return which pairs or triplets none of the batches of all processes has; empty if nothing is missing."""
    drawn = [indices_of(batch) for batch in batches]
    if run.processes > 1:
        drawn = [join({"indices": indices})["indices"] for indices in drawn]
    if stage.table.loss.memory is not None:  # whose pairs are of several batches
        drawn = [torch.cat(drawn)]
    labels = run.labels("train").cpu()
    if stage.table.loss.relation == "data":
        relation = run.relation
    else:
        relation = None
    return missing_pairs([labels[indices].to(run.device) for indices in drawn], relation)


def missing_pairs(batches: Sequence[Tensor], relation: Relation | None) -> str:
    """Say which pairs, or triplets, none of the batches has; labels are ``[B]`` each. Empty if nothing is missing."""
    positive_pairs = negative_pairs = triplets = False
    for labels in batches:
        positive, negative = _pairs_of(labels, relation)
        positive.fill_diagonal_(False)
        positive_pairs |= bool(positive.any())
        negative_pairs |= bool(negative.any())
        triplets |= bool((positive.any(dim=1) & negative.any(dim=1)).any())
    if not positive_pairs:
        remedy = "let the sampler draw several images of each class (pml/m-per-class with m = 2 or more)"
        return f"no batch has a positive pair, which takes two images of one class; {remedy}"
    if not negative_pairs:
        return "no batch has a negative pair, which takes two classes; let the sampler draw several classes"
    if triplets:
        return ""
    return "no batch has an image with both a positive and a negative, so there are no triplets"


def _pairs_of(labels: Tensor, relation: Relation | None) -> tuple[Tensor, Tensor]:
    """Return which pairs of labels, ``[B]``, are positive and which are negative, ``[B, B]`` each.

    Each label is positive with itself. A pair may be neither under a relation.
    """
    if relation is None:
        positive = labels[:, None] == labels[None]
        return positive, ~positive
    rows = relation.tensor(labels, len(labels), labels.device)
    weights = relation.matrix(rows, rows)
    return weights > 0, weights == 0
