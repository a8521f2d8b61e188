"""What miners, regularizers, distances, samplers and reducers must keep, beside what losses must too."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ... import registry
from ...losses import RegularizedLoss
from ...pml import ContrastiveLoss
from ...samplers import sampler_state, set_sampler_state
from ..calling import call
from ..probes import gradient
from ..subject import CLASSES, Batch, SkipCheck, Subject, batch_of, labels_of

# Miners


def _indices(subject: Subject, actual: Any, length: int, references: int) -> tuple[Tensor, ...]:
    if not isinstance(actual, tuple) or len(actual) not in (3, 4):
        raise AssertionError(f"a miner gives a tuple of three (anchors, positives, negatives) or four index tensors; "
                             f"got {type(actual).__name__}")  # fmt: skip
    for number, index in enumerate(actual):
        if index.dtype != torch.long or index.ndim != 1:
            raise AssertionError(
                f"index tensor {number} must be int64 of one dimension; got {index.dtype}, {index.ndim}"
            )
        limit = length if number in ({0} if len(actual) == 3 else {0, 2}) else references
        if len(index) and not 0 <= int(index.min()) <= int(index.max()) < limit:
            raise AssertionError(f"index tensor {number} is outside of 0 to {limit - 1}")
    lengths = [len(index) for index in actual]
    pairs = [lengths] if len(actual) == 3 else [lengths[:2], lengths[2:]]
    if any(len(set(together)) != 1 for together in pairs):
        raise AssertionError(f"index tensors that belong together differ in length: {lengths}")
    return actual


def check_mined_indices(subject: Subject) -> None:
    """Losses take three or four int64 index tensors; positives share the anchor's class, negatives do not."""
    batch = batch_of(subject)
    actual = _indices(subject, subject.make()(batch.embeddings, batch.labels), len(batch.labels), len(batch.labels))
    y = batch.labels
    a2, n = (actual[0], actual[2]) if len(actual) == 3 else (actual[2], actual[3])
    if not (y[actual[0]] == y[actual[1]]).all() or (y[a2] == y[n]).any():
        raise AssertionError("a positive has another class than its anchor, or a negative has the same")


def check_mined_references(subject: Subject) -> None:
    """A memory calls a miner with ``ref_emb`` and ``ref_labels``; partners are then rows of the references."""
    if "references" not in subject.capabilities:
        raise SkipCheck("it does not say that it has references")
    batch, other = batch_of(subject), batch_of(subject, (CLASSES, 5), seed=1)
    actual = subject.make()(batch.embeddings, batch.labels, other.embeddings, other.labels)
    _indices(subject, actual, len(batch.labels), len(other.labels))


def check_mining_has_no_gradient(subject: Subject) -> None:
    """Indices need no graph; one that is kept costs memory."""
    batch = batch_of(subject)
    before = batch.embeddings.detach().clone()
    subject.make()(batch.embeddings, batch.labels)
    if batch.embeddings.grad is not None or not torch.equal(batch.embeddings, before):
        raise AssertionError("mining changes the embeddings, or their gradient")


def check_mining_of_degenerate_batches(subject: Subject) -> None:
    """A batch may lack positives or negatives; what is found is then empty, not an error."""
    for labels in (torch.arange(4), torch.zeros(4, dtype=torch.long)):
        batch = batch_of(subject, labels)
        _indices(subject, subject.make()(batch.embeddings, batch.labels), 4, 4)


def check_mining_dtypes(subject: Subject) -> None:
    """Embeddings come in half precision too."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        batch = batch_of(subject, dtype=dtype)
        subject.make()(batch.embeddings, batch.labels)


# Regularizers


def check_regularizer_value(subject: Subject) -> None:
    """A regularizer gives a finite scalar with a gradient, and is right by finite differences."""
    batch, regularizer = batch_of(subject, (3, 3)), subject.make().double()
    value = call(regularizer, batch)
    if not isinstance(value, Tensor) or value.ndim != 0 or not value.isfinite():
        raise AssertionError(f"a regularizer gives a finite scalar tensor; got {value!r}")

    def of(x: Tensor) -> Tensor:
        return call(regularizer, Batch(x, batch.labels))  # type: ignore[no-any-return]

    if not torch.autograd.gradcheck(of, (batch.embeddings,), atol=1e-4, raise_exception=False):
        raise AssertionError("the gradient differs from finite differences of the value")


def check_regularizer_dtypes(subject: Subject) -> None:
    """Half precision in, full precision out."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        batch = batch_of(subject, dtype=dtype)
        value = call(subject.make(), batch)
        if value.dtype not in (torch.float32, torch.float64) or not value.isfinite():
            raise AssertionError(f"{dtype} embeddings give {value!r}; compute it in float32 or float64")


def check_regularizer_of_degenerate_batches(subject: Subject) -> None:
    """Batches of one class, of one image per class and of equal embeddings give finite values and gradients."""
    for labels in (torch.zeros(4, dtype=torch.long), torch.arange(4)):
        for equal in (False, True):
            batch = batch_of(subject, labels)
            if equal:
                with torch.no_grad():
                    batch.embeddings.copy_(batch.embeddings[:1].expand_as(batch.embeddings))
            value = call(subject.make().double(), batch)
            if not value.isfinite() or not gradient(value, batch.embeddings).isfinite().all():
                raise AssertionError(f"labels {labels.tolist()}{' and equal embeddings' * equal} give a value or a "
                                     "gradient that is not finite")  # fmt: skip


def check_regularizer_order_does_not_matter(subject: Subject) -> None:
    """The order of a batch means nothing."""
    batch = batch_of(subject)
    order = torch.randperm(len(batch.labels), generator=torch.Generator().manual_seed(0))
    other = batch.ordered(order)
    one = call(subject.make().double(), batch)
    two = call(subject.make().double(), other)
    if not torch.allclose(one, two, rtol=1e-7):
        raise AssertionError(f"the order of the batch changes the value: {two.item():.8g} instead of {one.item():.8g}")


def check_beside_a_loss(subject: Subject) -> None:
    """``RegularizedLoss(ContrastiveLoss(), regularizer, weight)`` is the weighted sum, and trains both."""
    batch, regularizer = batch_of(subject), subject.make().double()
    actual = RegularizedLoss(ContrastiveLoss(), regularizer, weight=0.5)(batch.embeddings, batch.labels)
    expected = ContrastiveLoss()(batch.embeddings, batch.labels)
    expected = expected + 0.5 * call(regularizer, batch)
    if not torch.allclose(actual, expected, rtol=1e-7):
        raise AssertionError(f"beside a loss it adds something else than its value: {actual.item():.8g} instead of "
                             f"{expected.item():.8g}")  # fmt: skip
    actual.backward()


# Distances


def check_distance_matrix(subject: Subject) -> None:
    """A distance gives ``[B, R]``, symmetric for a set with itself, the same for pairs."""
    one, other, distance = batch_of(subject), batch_of(subject, (CLASSES, 2), seed=1), subject.make().double()
    distance.eval()
    x, y = one.embeddings, other.embeddings
    matrix = distance(x, y)
    if matrix.shape != (len(x), len(y)):
        raise AssertionError(f"the matrix of {len(x)} and {len(y)} embeddings has shape {tuple(matrix.shape)}")
    if not torch.allclose(distance(x), distance(x).T, atol=1e-7):
        raise AssertionError("the matrix of a set with itself is not symmetric")
    normalized = [distance.maybe_normalize(z[: len(y)]) for z in (x, y)]
    if not torch.allclose(distance.pairwise_distance(*normalized), matrix.diagonal()[: len(y)], atol=1e-7):
        raise AssertionError("pairwise_distance differs from the diagonal of the matrix")


# Samplers


def check_sampler(subject: Subject) -> None:
    """A pass gives as many indices of the data as ``len`` says, and another pass does too."""
    sampler, count = subject.make(), len(labels_of((CLASSES, 4)))
    for _ in range(2):
        drawn = list(sampler)
        if len(drawn) != len(sampler):
            raise AssertionError(f"a pass gives {len(drawn)} items, but len() says {len(sampler)}")
        indices = np.asarray([index for item in drawn for index in (item if isinstance(item, list) else [item])])
        if len(indices) and not 0 <= indices.min() <= indices.max() < count:
            raise AssertionError(f"an index is outside of 0 to {count - 1}")


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed)


def check_sampler_state(subject: Subject) -> None:
    """A resumed run draws what the run that was not stopped would have drawn."""
    one, other = subject.make(), subject.make()
    _seed(0)
    list(one)
    state = copy.deepcopy(sampler_state(one))
    _seed(1)
    expected = list(one)
    set_sampler_state(other, state)
    _seed(1)
    if list(other) != expected:
        raise AssertionError("after its state is put back it draws something else; give it state_dict() and "
                             "load_state_dict(), generator included")  # fmt: skip


# Reducers


def check_reducer(subject: Subject) -> None:
    """A reducer makes a scalar of elements, pairs and triplets, and zero of none."""
    batch, reducer = batch_of(subject), subject.make()
    rows = torch.arange(8)
    for kind, indices in (("element", rows), ("pos_pair", (rows, rows)), ("neg_pair", (rows, rows)),
                          ("triplet", (rows, rows, rows))):  # fmt: skip
        losses = batch.embeddings[:8].square().sum(1)
        info = {"loss": {"losses": losses, "indices": indices, "reduction_type": kind, "divisor": 8}}
        value = reducer(info, batch.embeddings, batch.labels)
        if not isinstance(value, Tensor) or value.ndim != 0:
            raise AssertionError(f"{kind} values give {value!r}, not a scalar tensor")


# All kinds


def check_can_be_pickled(subject: Subject) -> None:
    """Components are copied and pickled, by data loaders, checkpoints and spawned processes."""
    try:
        copy.deepcopy(subject.make())
        pickle.loads(pickle.dumps(subject.make()))
    except Exception as error:
        raise AssertionError(f"it cannot be copied or pickled: {error}") from error


def check_capabilities(subject: Subject) -> None:
    """Wrappers ask for ``capabilities``; a misspelt one is never found."""
    if unknown := set(subject.capabilities) - registry.CAPABILITIES:
        raise AssertionError(f"unknown capabilities {sorted(unknown)}; known are {sorted(registry.CAPABILITIES)}")
