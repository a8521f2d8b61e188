"""Checks of single kinds: miners, distances, reducers."""

import itertools
from typing import Any

import torch
from torch import Tensor

from ...registry.components import CAPABILITIES
from ..batches import CLOSE, batch_of, new_leaf, shuffle
from ..calling import call, error_location, is_random, needs, seeded
from ..comparing import all_close, check_tuple, close, gradient, sorted_rows, weighted
from ..subject import CLASSES, SkipCheck, Subject, applies_to, require, with_noise
from .reference import declared, variants


@applies_to("loss", "miner", "regularizer", "distance")
def check_capabilities(subject: Subject) -> None:
    """Capabilities must have known names; wrappers never find a misspelled one."""
    unknown = set(subject.capabilities) - CAPABILITIES
    require(not unknown, f"unknown capabilities {sorted(unknown)}; known are {sorted(CAPABILITIES)}")


@applies_to("miner")
def check_mined_indices(subject: Subject) -> None:
    """A miner returns three or four int64 index tensors with the right classes."""
    tables = [subject.settings]
    for name in declared(subject):
        tables += itertools.islice(variants(subject, subject.settings, name), 2)
    for settings, case in itertools.product(tables, CLOSE):
        batch = batch_of(subject, **case)
        try:
            mined = call(subject.make(settings), batch)
        except (AssertionError, TypeError) as error:
            if not error_location(error).startswith("base_miner.py"):
                raise
            raise AssertionError("PML refuses what mine() returns; it needs three index tensors, or four") from error
        check_tuple(mined, batch.labels, batch.labels, twice=is_random(subject))


@applies_to("miner")
def check_mined_references(subject: Subject) -> None:
    """Partners must be rows of the references, in any order and number."""
    batch = batch_of(subject)
    try:
        call(subject.make(), batch, batch_of(subject, seed=1).embeddings, batch.labels)
    except Exception as error:
        needs(subject, "references")
        raise SkipCheck(f"it refuses references with {type(error).__name__}") from None
    for images in (5, 4):
        other = batch_of(subject, (CLASSES, images), seed=1)
        mined = []
        for seed in (3, 4):
            order = shuffle(len(other.labels), seed)
            references = other.ordered(order)
            found = seeded(subject.make(), batch, references.embeddings, references.labels)
            where = f", among {len(order)} references; partners are rows of ref_emb, with ref_labels"
            check_tuple(found, batch.labels, references.labels, where, is_random(subject))
            in_batch_order = list(found)
            for partner in (1, len(found) - 1):
                in_batch_order[partner] = order[found[partner]]
            mined.append(sorted_rows(tuple(in_batch_order)))
        require(
            all_close(mined[:1], mined[1:]) or is_random(subject),
            f"the order of {len(order)} references changes what is mined from {len(batch.labels)} images; mine among "
            "ref_emb, and say has_references=True to pair_masks",
        )


def _of_raw_embeddings(subject: Subject) -> Any:
    if subject.cls is None or not getattr(subject.make(), "normalize_embeddings", False):
        return None
    try:
        return subject.make({**subject.settings, "normalize_embeddings": False})
    except (AssertionError, TypeError, ValueError):
        return None


def _check_matrix(distance: Any, x: Tensor, y: Tensor, where: str = "") -> None:
    matrix = distance(x, y)
    for rows, columns in ((x, y), (x[:1], y), (x, y[:1]), (x[:1], y[:1])):
        shape = tuple(distance(rows, columns).shape)
        wanted = (len(rows), len(columns))
        require(shape == wanted, f"the matrix of {len(rows)} and {len(columns)} embeddings is {shape}")

    count = min(len(x), len(y))
    normalized_x = distance.maybe_normalize(x[:count])
    normalized_y = distance.maybe_normalize(y[:count])
    shape_of_one = tuple(distance.pairwise_distance(normalized_x[:1], normalized_y[:1]).shape)
    require(
        shape_of_one == (1,),
        f"pairwise_distance of one pair has the shape {shape_of_one}, not (1,); squeeze nothing",
    )
    every_pair = [distance.pairwise_distance(normalized_x, normalized_y.roll(by, 0)) for by in range(count)]
    rows = torch.arange(count)
    for by, values in enumerate(every_pair):
        text = f"pairwise_distance(x, y) differs from the matrix of x and y, whose rows belong to x{where}"
        close(values, matrix[rows, (rows - by) % count], text, 1e-5, 1e-7)
    alone = torch.cat([distance(row[None], y) for row in x])
    close(alone, matrix, f"the distance of two embeddings depends on others of the batch{where}", 1e-5, 1e-7)


@applies_to("distance")
def check_distance(subject: Subject) -> None:
    """A distance gives ``[B, R]``, equal to its form for pairs; equal points are nearest.

    It need not be symmetric, but the matrix of a set with itself must be that of two equal sets.
    """
    x = batch_of(subject).embeddings
    distance = with_noise(subject.make().eval())
    close(distance(x), distance(x, x.clone()), "of one set it gives another matrix than of two equal ones", 1e-5, 1e-7)
    for images in (2, 4, 5):
        y = batch_of(subject, (subject.classes, images), seed=1).embeddings
        _check_matrix(distance, x, y)
    raw = _of_raw_embeddings(subject)
    if raw is not None:
        _check_matrix(with_noise(raw.eval()), x, y, ", with normalize_embeddings=False")
    require(gradient(weighted(distance(x, y)), y).any(), "the references get no gradient; detach none of the two")
    twice = new_leaf(torch.cat([x[:4], x[:4]]))
    matrix = distance(twice)
    require(
        matrix.requires_grad and gradient(matrix.sum(), twice).isfinite().all(),
        "the gradient between equal points is missing or not finite; roots want eps below them",
    )
    equal_points = matrix.diagonal(4)
    others = matrix[~torch.eye(4, dtype=torch.bool).repeat(2, 2)]
    sign = -1 if distance.is_inverted else 1
    near = (sign * equal_points).max() <= (sign * others).min() + 1e-6
    require(
        near or [*distance.parameters()],  # a distance with parameters learns what is near
        "equal points are not the nearest; where large is near, pass is_inverted=True to super()",
    )


@applies_to("reducer")
def check_reducer(subject: Subject) -> str | None:
    """A reducer returns a scalar for all kinds of values, and 0 with a gradient for none.

    It may refuse some kinds with NotImplementedError.
    """
    batch = batch_of(subject)
    reducer = subject.make()
    rows = torch.arange(8)
    losses = batch.embeddings[:8].square().sum(1)
    refused = []
    kinds = {"element": 1, "pos_pair": 2, "neg_pair": 2, "triplet": 3}
    for kind, count in kinds.items():
        indices = rows if count == 1 else (rows,) * count
        info = {"loss": {"losses": losses, "indices": indices, "reduction_type": kind, "divisor": 8}}
        try:
            value = reducer(info, batch.embeddings, batch.labels)
        except NotImplementedError:
            refused.append(kind)
            continue
        is_scalar = isinstance(value, Tensor) and value.ndim == 0
        require(is_scalar, f"{kind} values give {value!r}, not a scalar tensor")
    none = {"loss": {"losses": 0, "indices": None, "reduction_type": "already_reduced"}}
    value = reducer(none, batch.embeddings, batch.labels)
    require(
        isinstance(value, Tensor) and value == 0 and value.requires_grad,
        f"of no values, 0 that is reduced already, it gives {value!r}, not 0 with a gradient",
    )
    require(len(refused) < len(kinds), "it refuses elements, pairs and triplets, each with NotImplementedError")
    return f"it refuses values of {', '.join(refused)}" if refused else None
