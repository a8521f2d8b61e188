"""Which losses can train on listed pairs or triplets, whose items have no labels."""

import copy

import torch
from torch import Tensor, nn

from ..errors import one_line, shortened
from ..pairwise import Kind, ListedTuples
from ..registry.components import capabilities

_PROBES: dict[str, tuple[list[list[int]], list[bool] | None]] = {  # tuples of items that are in no other tuple
    "pairs": ([[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]], [True, False, True, False, True, False]),
    "triplets": ([[0, 1, 2], [3, 4, 5], [6, 7, 8]], None),
}
_SPREADS = (0.05, 0.5, 3.0)  # of the embeddings of a probe: within any margin, and outside of it
INSTEAD = {  # losses that can, for texts
    "pairs": "pml/contrastive or pml/multi-similarity",
    "triplets": "pml/triplet-margin or pml/multi-similarity",
}


def why_unusable(loss: nn.Module, kind: Kind, size: int = 16) -> str:
    """Why a loss cannot train on listed pairs or triplets without labels, or an empty string.

    It calls a copy of the loss with random embeddings of length ``size``. Each tuple must contribute to the gradients
    of all its items.
    """
    if "indices_tuple" not in capabilities(loss):
        return "it takes no indices_tuple"
    rows, same = _PROBES[kind]
    tuples = ListedTuples(torch.tensor(rows), None if same is None else torch.tensor(same))
    counts = torch.zeros(tuples.rows.shape, dtype=torch.bool)  # whether a tuple moves each of its items
    with torch.random.fork_rng([]):
        for spread in _SPREADS:
            torch.default_generator.manual_seed(0)  # of a GPU, fork_rng([]) would not put it back
            embeddings = torch.randn(size) + spread * torch.randn(int(tuples.rows.max()) + 1, size)
            try:
                counts |= _moved(loss, embeddings, tuples)
                counts |= _moved(loss, _with_near_negatives(embeddings, tuples), tuples)
            except Exception as error:  # of any kind, as losses raise them
                return shortened(one_line(error), 200)
            if counts.all():
                return ""
    if same is None:
        return "with these settings, some triplets do not add to it"
    for answer, text in ((True, "the same"), (False, "not the same")):
        if not counts[tuples.same == answer].all():
            return f"a pair that is {text} adds nothing to it by itself"
    return ""


def takes_conflicts(loss: nn.Module, size: int = 16) -> bool:
    """Whether an anchor's positive in one triplet may be its negative in another.

    PML's losses of matrices, such as the multi-similarity loss, reject this.
    """
    triplets = ListedTuples([[0, 1, 2], [0, 3, 1], [4, 5, 6]])
    with torch.random.fork_rng([]):
        torch.default_generator.manual_seed(0)
        try:
            _gradient(loss, torch.randn(7, size), triplets)
        except Exception:  # of any kind, as losses raise them
            return False
    return True


def _with_near_negatives(embeddings: Tensor, tuples: ListedTuples) -> Tensor:
    points = embeddings.clone()
    if tuples.same is None:
        anchors, positives, negatives = tuples.rows.T
        near = (points[anchors] + points[positives]) / 2
    else:
        anchors, negatives = tuples.rows[~tuples.same].T
        near = points[anchors]
    points[negatives] = near + 0.01 * torch.randn(near.shape)
    return points


def _moved(loss: nn.Module, embeddings: Tensor, tuples: ListedTuples) -> Tensor:
    whole = _gradient(loss, embeddings, tuples)
    moved = torch.zeros(tuples.rows.shape, dtype=torch.bool)
    for number in range(len(tuples)):
        others = torch.arange(len(tuples)) != number
        difference = whole - _gradient(loss, embeddings, tuples.some(others))
        moved[number] = (difference[tuples.rows[number]] != 0).any(dim=1)
    return moved


def _gradient(loss: nn.Module, embeddings: Tensor, tuples: ListedTuples) -> Tensor:
    points = embeddings.clone().requires_grad_()
    batch = tuples.batch(range(len(tuples)))
    indices_tuple = tuple(torch.tensor(batch.items)[index] for index in batch.indices_tuple)
    torch.default_generator.manual_seed(1)
    value = copy.deepcopy(loss).cpu().train()(points, None, indices_tuple)
    if not (isinstance(value, Tensor) and value.requires_grad):
        return torch.zeros_like(embeddings)
    (gradient,) = torch.autograd.grad(value, points, allow_unused=True)
    return torch.zeros_like(embeddings) if gradient is None else gradient
