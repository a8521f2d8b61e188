"""Checks of single kinds: miners, distances, samplers, reducers."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...components import CAPABILITIES
from ...registry import settings_of
from ..batches import batch_of, fresh, shuffle
from ..calling import call, gradient, is_random, needs, place_of, seeded
from ..subject import CLASSES, Subject, applies_to


@applies_to("loss", "miner", "regularizer", "distance")
def check_capabilities(subject: Subject) -> None:
    """Wrappers ask for ``capabilities``; a misspelt one is never found."""
    if unknown := set(subject.capabilities) - CAPABILITIES:
        raise AssertionError(f"unknown capabilities {sorted(unknown)}; known are {sorted(CAPABILITIES)}")


def _check_mined(actual: Any, labels: Tensor, ref_labels: Tensor, where: str = "") -> tuple[Tensor, Tensor]:
    """Fail where a miner's tuple is not what losses take; return anchors and positives."""
    if not isinstance(actual, tuple) or len(actual) not in (3, 4):
        raise AssertionError(f"a miner gives a tuple of three or four index tensors; got {type(actual).__name__}")
    a, p, b, n = actual if len(actual) == 4 else (actual[0], actual[1], actual[0], actual[2])
    for number, (index, of) in enumerate(((a, labels), (p, ref_labels), (b, labels), (n, ref_labels))):
        if index.dtype != torch.long or index.ndim != 1:
            raise AssertionError(f"index tensor {number} must be int64 [N]; got {index.dtype}, {index.ndim}")
        if len(index) and not 0 <= int(index.min()) <= int(index.max()) < len(of):
            raise AssertionError(f"index tensor {number} is outside of 0 to {len(of) - 1}")
    if len(a) != len(p) or len(b) != len(n):
        raise AssertionError(f"index tensors that belong together differ in length: {[*map(len, actual)]}")
    if not (labels[a] == ref_labels[p]).all() or (labels[b] == ref_labels[n]).any():
        raise AssertionError(f"a positive has another class than its anchor, or a negative has the same{where}")
    return a, p


@applies_to("miner")
def check_mined_indices(subject: Subject) -> None:
    """Losses take three or four int64 index tensors; positives share the anchor's class, negatives do not."""
    batch = batch_of(subject)
    try:
        mined = call(subject.make(), batch)
    except (AssertionError, TypeError) as error:
        if not place_of(error).startswith("base_miner.py"):
            raise
        raise AssertionError("PML refuses what mine() returns; it wants three index tensors, or four") from error
    anchors, positives = _check_mined(mined, batch.labels, batch.labels)
    if (anchors == positives).any():
        raise AssertionError("an anchor is its own positive, at distance 0; leave the diagonal out, as pair_masks does")


@applies_to("miner")
def check_mined_references(subject: Subject) -> None:
    """A memory calls a miner with ``ref_emb`` and ``ref_labels``; partners are then rows of the references."""
    needs(subject, "references")
    batch, other = batch_of(subject), batch_of(subject, (CLASSES, 5), seed=1)
    order = shuffle(len(other.labels), 3)
    where = ", among references; partners are rows of ref_emb, with ref_labels"
    pairs = []
    for references, places in ((other, torch.arange(len(order))), (other.ordered(order), order)):
        mined = seeded(subject.make(), batch, references.embeddings, references.labels)
        anchors, positives = _check_mined(mined, batch.labels, references.labels, where)
        pairs.append({*zip(anchors.tolist(), places[positives].tolist(), strict=True)})
    if pairs[0] != pairs[1] and not is_random(subject):
        raise AssertionError("the order of the references changes which pairs are mined; mine among ref_emb")


@applies_to("distance")
def check_distance(subject: Subject) -> None:
    """A distance gives ``[B, R]``, symmetric for a set with itself, the same for pairs; equal points are the nearest.

    ``is_inverted`` says that a large value is near, as of a similarity; losses and miners go by it. A distance with
    parameters learns what is near. The gradient between equal points is finite.
    """
    x, y = batch_of(subject).embeddings, batch_of(subject, (CLASSES, 2), seed=1).embeddings
    distance = subject.make().eval()
    matrix = distance(x, y)
    if matrix.shape != (len(x), len(y)):
        raise AssertionError(f"the matrix of {len(x)} and {len(y)} embeddings has shape {tuple(matrix.shape)}")
    if not torch.allclose(distance(x), distance(x).T, atol=1e-7):
        raise AssertionError("the matrix of a set with itself is not symmetric")
    normalized = [distance.maybe_normalize(z[: len(y)]) for z in (x, y)]
    if not torch.allclose(distance.pairwise_distance(*normalized), matrix.diagonal()[: len(y)], atol=1e-7):
        raise AssertionError("pairwise_distance differs from the diagonal of the matrix")

    twice = fresh(torch.cat([x[:4], x[:4]]))
    matrix = distance(twice)
    if not matrix.requires_grad or not gradient(matrix.sum(), twice).isfinite().all():
        raise AssertionError("the gradient between equal points is missing or not finite; roots want eps below them")
    own, others = matrix.diagonal(4), matrix[~torch.eye(4, dtype=torch.bool).repeat(2, 2)]
    near = own.min() >= others.max() - 1e-6 if distance.is_inverted else own.max() <= others.min() + 1e-6
    if not near and not any(True for _ in distance.parameters()):
        raise AssertionError("equal points are not the nearest; where large is near, pass is_inverted=True to super()")


@applies_to("sampler")
def check_sampler(subject: Subject) -> None:
    """A pass, and another one, gives as many indices of the data as ``len`` says, in whole batches of different images.

    ``length_before_new_iter``, which ``[sampler] iterations`` of a recipe sets, says how many images a pass has.
    """
    sampler, count = subject.make(), 4 * CLASSES
    for _ in range(2):
        drawn = list(sampler)
        if len(drawn) != len(sampler):
            raise AssertionError(f"a pass gives {len(drawn)} items, but len() says {len(sampler)}")
        indices = np.asarray([index for item in drawn for index in (item if isinstance(item, list) else [item])])
        if len(indices) and not 0 <= indices.min() <= indices.max() < count:
            raise AssertionError(f"an index is outside of 0 to {count - 1}")
    size, batches = getattr(sampler, "batch_size", None), [item for item in drawn if isinstance(item, list)]
    if size and (wrong := sorted({len(batch) for batch in batches[:-1]} - {size})):
        raise AssertionError(f"a batch has {wrong[0]} images, but batch_size is {size}")
    if any(len(set(batch)) != len(batch) for batch in batches):
        raise AssertionError("an image comes twice in a batch, as a positive of itself at distance 0")
    if subject.cls is None or "length_before_new_iter" not in settings_of(subject.cls):
        return
    short, long = (len([*subject.make({**subject.settings, "length_before_new_iter": n})]) for n in (24, 48))
    if short == long:
        raise AssertionError(f"length_before_new_iter is accepted and ignored: 24 and 48 both give {short} items")


@applies_to("sampler")
def check_sampler_state(subject: Subject) -> None:
    """A resumed run draws what the run that was not stopped would have drawn."""

    def drawn(sampler: Any, seed: int) -> list[Any]:
        torch.manual_seed(seed)
        np.random.seed(seed)
        return list(sampler)

    one, other = subject.make(), subject.make()
    drawn(one, 0)
    own = hasattr(one, "state_dict")
    state = copy.deepcopy(one.state_dict() if own else vars(one))
    expected = drawn(one, 1)
    other.load_state_dict(state) if own else vars(other).update(state)
    if drawn(other, 1) != expected:
        raise AssertionError("after its state is put back it draws something else; give it state_dict()")


@applies_to("reducer")
def check_reducer(subject: Subject) -> None:
    """A reducer makes a scalar of elements, pairs and triplets."""
    batch, reducer, rows = batch_of(subject), subject.make(), torch.arange(8)
    losses = batch.embeddings[:8].square().sum(1)
    for kind, count in (("element", 1), ("pos_pair", 2), ("neg_pair", 2), ("triplet", 3)):
        indices = rows if count == 1 else (rows,) * count
        info = {"loss": {"losses": losses, "indices": indices, "reduction_type": kind, "divisor": 8}}
        value = reducer(info, batch.embeddings, batch.labels)
        if not isinstance(value, Tensor) or value.ndim != 0:
            raise AssertionError(f"{kind} values give {value!r}, not a scalar tensor")
