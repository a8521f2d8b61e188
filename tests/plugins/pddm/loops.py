"""Eq. 2 to 4 of Huang et al. (2016), pair by pair: what the tests compare with."""

import itertools

import torch

from ..cbml.loops import pairs_from_labels, pairs_of


def layer(module, x):
    return torch.atleast_2d(module.weight).double() @ x + module.bias.double()


def unit(x):
    length = x.norm()
    return x / length if length > 0 else 0 * x


def score(distance, x, y):
    """Eq. 2 of two embeddings."""
    x = unit(x)
    y = unit(y)
    inner = [unit(layer(distance.difference, (x - y).abs()).relu())]
    if distance.position is not None:
        inner.append(unit(layer(distance.position, (x + y) / 2).relu()))
    return layer(distance.score, layer(distance.combine, torch.cat(inner)).relu())[0]


def matrix(distance, x, y):
    if not len(x) or not len(y):
        return x.new_zeros(len(x), len(y))
    return torch.stack([torch.stack([score(distance, a, b) for b in y]) for a in x])


def quadruplets(similarity, labels, count=1, per_class=False, tuples=None):
    """Triplets (i, j, k) and (j, i, l), Sec. 3.1, and the number of quadruplets, of all pairs or of a miner's."""
    positives, negatives = pairs_from_labels(labels) if tuples is None else pairs_of(tuples)
    others = {i: [n for a, n in negatives if a == i] for i in range(len(labels))}
    pairs = sorted({tuple(sorted(pair)) for pair in positives})
    pairs = [(i, j) for i, j in pairs if others[i] or others[j]]
    pairs.sort(key=lambda pair: similarity[pair[0]][pair[1]])  # stable: the first in row-major order
    if per_class:
        pairs = [pair for label in sorted(set(labels)) for pair in [p for p in pairs if labels[p[0]] == label][:count]]
    else:
        pairs = pairs[:count]
    ends = [end for i, j in pairs for end in ((i, j), (j, i)) if others[end[0]]]
    return [(a, p, max(others[a], key=lambda n: (similarity[a][n], -n))) for a, p in ends], len(pairs)


def pointwise(distance, embeddings, labels, kind):
    """Eq. 1 with logistic regression, or the Fisher criterion, over the unordered pairs of a batch."""
    pairs = list(itertools.combinations(range(len(labels)), 2))
    scores = [(score(distance, embeddings[i], embeddings[j]), labels[i] == labels[j]) for i, j in pairs]
    if kind == "logistic":
        terms = [-torch.log(p if same else 1 - p) for s, same in scores for p in [1 / (1 + torch.exp(-s))]]
        return sum(terms) / max(1, len(terms))
    groups = [[s for s, same in scores if same == wanted] for wanted in (True, False)]
    if not all(groups):
        return 0.0
    means = [sum(group) / len(group) for group in groups]
    spread = sum(sum((s - mean) ** 2 for s in group) / len(group) for group, mean in zip(groups, means, strict=True))
    return -((means[0] - means[1]) ** 2) / spread


def mahalanobis(weight, x, y):
    """Distances of normalized rows under the metric L^T L of Sec. 1."""
    form = weight.T @ weight
    (x, y) = ([row / row.norm() for row in each] for each in (x, y))
    return torch.stack([torch.stack([((a - b) @ form @ (a - b)).sqrt() for b in y]) for a in x])


def objective(
    distance,
    embeddings,
    labels,
    tuples=None,
    *,
    score_margin=0.5,
    embedding_margin=1.0,
    embedding_weight=0.5,
    num_quadruplets=1,
    per_class=False,
    squared=False,
    normalize_scores=True,
):
    """E_m and E_e times its weight, Eq. 3 and 4."""
    size = len(labels)
    x = [unit(row) for row in embeddings]
    s = matrix(distance, embeddings, embeddings)
    if tuples is not None and len(tuples) == 3:
        found = list(zip(*(index.tolist() for index in tuples), strict=True))
        number = len(found) / 2
    else:
        found, number = quadruplets(s, labels, num_quadruplets, per_class, tuples)
    if normalize_scores:
        values = [s[i][j] for i in range(size) for j in range(size) if i != j]
        low = min(values)
        high = max(values)
        s = [[(value - low) / (high - low) if high > low else 0.0 for value in row] for row in s]
    metric = embedding = 0 * embeddings.sum()
    for a, p, n in found:
        metric = metric + (score_margin + s[a][n] - s[a][p]).relu()
        near, far = ((x[a] - x[other]).norm() ** (2 if squared else 1) for other in (p, n))
        embedding = embedding + (embedding_margin + near - far).relu()
    return metric / (number or 1), embedding_weight * embedding / (number or 1)
