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
from ..calling import call, equal, is_random
from ..probes import gradient, place_of
from ..subject import CLASSES, SIZE, Batch, SkipCheck, Subject, batch_of, fresh, labels_of

# Miners


def _indices(subject: Subject, actual: Any, length: int, references: int) -> tuple[Tensor, ...]:
    if not isinstance(actual, tuple) or len(actual) not in (3, 4):
        raise AssertionError(
            f"a miner gives a tuple of three (anchors, positives, negatives) or four index tensors; "
            f"got {type(actual).__name__}"
        )
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
    try:
        given = subject.make()(batch.embeddings, batch.labels)
    except (AssertionError, TypeError) as error:
        if not place_of(error).startswith("base_miner.py"):
            raise
        raise AssertionError(
            "PML refuses what mine() returns; it wants three index tensors (anchors, positives, "
            "negatives) or four (anchors, positives, anchors, negatives)"
        ) from error
    mined = _indices(subject, given, len(batch.labels), len(batch.labels))
    y = batch.labels
    a2, n = (mined[0], mined[2]) if len(mined) == 3 else (mined[2], mined[3])
    if not (y[mined[0]] == y[mined[1]]).all() or (y[a2] == y[n]).any():
        raise AssertionError("a positive has another class than its anchor, or a negative has the same")
    if (mined[0] == mined[1]).any():
        raise AssertionError("an anchor is its own positive, at distance 0; leave the diagonal out, as pair_masks does")


def check_mined_references(subject: Subject) -> None:
    """A memory calls a miner with ``ref_emb`` and ``ref_labels``; partners are then rows of the references."""
    if "references" not in subject.capabilities:
        raise SkipCheck("it does not say that it has references")
    batch, other = batch_of(subject), batch_of(subject, (CLASSES, 5), seed=1)
    order = torch.randperm(len(other.labels), generator=torch.Generator().manual_seed(3))
    pairs = []
    for references in (other, other.ordered(order)):
        torch.manual_seed(0)
        given = subject.make()(batch.embeddings, batch.labels, references.embeddings, references.labels)
        index = _indices(subject, given, len(batch.labels), len(other.labels))
        pairs.append(index)
        partners = references.labels
        a2, n = (index[0], index[2]) if len(index) == 3 else (index[2], index[3])
        if not (batch.labels[index[0]] == partners[index[1]]).all() or (batch.labels[a2] == partners[n]).any():
            raise AssertionError(
                "with references, a positive has another class than its anchor, or a negative has the "
                "same; partners are rows of ref_emb, with ref_labels"
            )
    if is_random(subject):
        return
    one = {(a, p) for a, p in zip(pairs[0][0].tolist(), pairs[0][1].tolist(), strict=True)}
    two = {(a, p) for a, p in zip(pairs[1][0].tolist(), order[pairs[1][1]].tolist(), strict=True)}
    if one != two:
        raise AssertionError(
            "the order of the references changes which pairs are mined: their distances are not "
            "looked at; mine among ref_emb"
        )

    def mined(x: Tensor, references: Tensor) -> Any:
        torch.manual_seed(0)
        return subject.make()(x, batch.labels, references, other.labels)

    x, y = batch.embeddings.detach(), other.embeddings.detach()
    base = mined(x, y)
    if equal(mined(x, -y.flip(1)), base) and not equal(mined(-x.flip(1), y), base):
        raise AssertionError("other references give the same pairs: ref_emb is accepted and ignored; mine among them")


def check_mining_is_deterministic(subject: Subject) -> None:
    """With the same seed a run must mine the same again; a resumed one too, so that no call depends on those before."""
    batch, mined = batch_of(subject), []
    for _ in range(2):
        torch.manual_seed(0)
        mined.append(subject.make()(batch.embeddings, batch.labels))
    if not equal(*mined):
        raise AssertionError(
            "two equal calls after torch.manual_seed(0) mine two sets of pairs; draw by torch's generators"
        )
    component = subject.make()
    for seed in (3, 0):
        torch.manual_seed(0)
        again = component(batch_of(subject, seed=seed).embeddings, batch.labels)
    if not equal(again, mined[0]) and "state" not in subject.capabilities:
        raise AssertionError(
            "what is mined depends on the calls before: the miner keeps state that no checkpoint has; "
            "keep none, or in buffers, and say capabilities with 'state'"
        )


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
        subject.make().to(torch.promote_types(dtype, torch.float32))(batch.embeddings, batch.labels)


# Regularizers


def check_regularizer_value(subject: Subject) -> None:
    """A regularizer gives a finite scalar with a gradient, and is right by finite differences."""
    batch, regularizer = batch_of(subject, (3, 3)), subject.make().double()
    value = call(regularizer, batch)
    if not isinstance(value, Tensor) or value.ndim != 0 or not value.isfinite():
        raise AssertionError(f"a regularizer gives a finite scalar tensor; got {value!r}")

    def of(x: Tensor) -> Tensor:
        return call(regularizer, Batch(x, batch.labels))  # type: ignore[no-any-return]

    if not torch.autograd.gradcheck(
        of, (batch.embeddings,), atol=1e-4, raise_exception=False, fast_mode=subject.size > SIZE
    ):
        raise AssertionError("the gradient differs from finite differences of the value")


def check_regularizer_dtypes(subject: Subject) -> None:
    """Half precision in, full precision out."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        batch = batch_of(subject, dtype=dtype)
        value = call(subject.make().to(torch.promote_types(dtype, torch.float32)), batch)
        if value.dtype not in (torch.float32, torch.float64) or not value.isfinite():
            raise AssertionError(f"{dtype} embeddings give {value!r}; compute it in float32 or float64")


def check_regularizer_of_degenerate_batches(subject: Subject) -> None:
    """Batches of one class, of one image per class and of equal embeddings give finite values and gradients."""
    for labels in (torch.zeros(4, dtype=torch.long), torch.arange(4)):
        for collapsed in (False, True):
            batch = batch_of(subject, labels)
            if collapsed:
                with torch.no_grad():
                    batch.embeddings.copy_(batch.embeddings[:1].expand_as(batch.embeddings))
            value = call(subject.make().double(), batch)
            if not value.isfinite() or not gradient(value, batch.embeddings).isfinite().all():
                raise AssertionError(
                    f"labels {labels.tolist()}{' and equal embeddings' * collapsed} give a value or a "
                    "gradient that is not finite"
                )


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
        raise AssertionError(
            f"beside a loss it adds something else than its value: {actual.item():.8g} instead of {expected.item():.8g}"
        )
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


def check_distance_of_equal_points(subject: Subject) -> None:
    """Equal points are the nearest there are, and the gradient between them is finite.

    ``is_inverted`` says that a large value is near, as of a similarity; losses and miners go by it. What is near by a
    distance with parameters, it learns.
    """
    batch, distance = batch_of(subject), subject.make()
    distance.eval()
    x = fresh(torch.cat([batch.embeddings[:4], batch.embeddings[:4]]).detach())
    matrix = distance(x)
    (slope,) = torch.autograd.grad(matrix.sum(), x, allow_unused=True)
    if slope is None or not slope.isfinite().all():
        raise AssertionError(
            "the gradient between equal points is missing or not finite; take the root of what is at "
            "least eps, and do not detach()"
        )
    if any(True for _ in distance.parameters()):
        return
    own, others = matrix.diagonal(4), matrix[~torch.eye(4, dtype=torch.bool).repeat(2, 2)]
    near = own.min() >= others.max() - 1e-6 if distance.is_inverted else own.max() <= others.min() + 1e-6
    if not near:
        raise AssertionError(
            f"with is_inverted = {distance.is_inverted} equal points are not the nearest: theirs are "
            f"{own.min():.4g} to {own.max():.4g}, others' {others.min():.4g} to {others.max():.4g}; "
            "pass is_inverted=True to super().__init__() where large is near"
        )


def check_distance_dtypes(subject: Subject) -> None:
    """Embeddings come in half precision too; distances of these, in half precision, tie."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        one, other = batch_of(subject, dtype=dtype), batch_of(subject, (CLASSES, 2), dtype, seed=1)
        matrix = subject.make().to(torch.promote_types(dtype, torch.float32)).eval()(one.embeddings, other.embeddings)
        if not matrix.isfinite().all():
            raise AssertionError(f"{dtype} embeddings give a distance that is not finite")


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


def check_sampler_batches(subject: Subject) -> None:
    """A sampler of batches gives batches of the size that it was asked for, each image once."""
    sampler = subject.make()
    size = getattr(sampler, "batch_size", None)
    batches = [item for item in sampler if isinstance(item, list)]
    if not batches or not isinstance(size, int):
        raise SkipCheck("it gives single indices, or does not say its batch_size")
    if wrong := sorted({len(batch) for batch in batches[:-1]} - {size}):
        raise AssertionError(f"a batch has {wrong[0]} images, but batch_size is {size}")
    if any(len(set(batch)) != len(batch) for batch in batches):
        raise AssertionError("an image comes twice in a batch, as a positive of itself at distance 0")


def check_sampler_length(subject: Subject) -> None:
    """``length_before_new_iter``, which ``[sampler] iterations`` of a recipe sets, is how many images a pass has."""
    if subject.cls is None or "length_before_new_iter" not in registry.settings_of(subject.cls):
        raise SkipCheck("it has no setting length_before_new_iter")
    short, long = (len([*subject.make({**subject.settings, "length_before_new_iter": n})]) for n in (24, 48))
    if short == long:
        raise AssertionError(
            f"length_before_new_iter is accepted and ignored: 24 and 48 both give {short} items, "
            "so that [sampler] iterations of a recipe has no effect"
        )


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
        raise AssertionError(
            "after its state is put back it draws something else; give it state_dict() and "
            "load_state_dict(), generator included"
        )


# Reducers


def check_reducer(subject: Subject) -> None:
    """A reducer makes a scalar of elements, pairs and triplets, and zero of none."""
    batch, reducer = batch_of(subject), subject.make()
    rows = torch.arange(8)
    for kind, indices in (
        ("element", rows),
        ("pos_pair", (rows, rows)),
        ("neg_pair", (rows, rows)),
        ("triplet", (rows, rows, rows)),
    ):
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
