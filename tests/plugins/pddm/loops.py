"""Eq. 2 to 4 of Huang et al. (2016), line by line in Python: what the tests compare with."""

import itertools
import math

import torch


def layer(module, x):
    weights = torch.atleast_2d(module.weight).tolist()
    return [
        sum(w * v for w, v in zip(row, x, strict=True)) + b
        for row, b in zip(weights, module.bias.tolist(), strict=True)
    ]


def relu(x):
    return [max(0.0, value) for value in x]


def unit(x):
    length = sum(value * value for value in x) ** 0.5
    return [value / length if length else 0.0 for value in x]


def score(distance, x, y):
    """Eq. 2 of two embeddings."""
    x, y = unit(x.tolist()), unit(y.tolist())
    inner = unit(relu(layer(distance.difference, [abs(a - b) for a, b in zip(x, y, strict=True)])))
    if distance.position is not None:
        inner += unit(relu(layer(distance.position, [(a + b) / 2 for a, b in zip(x, y, strict=True)])))
    return layer(distance.score, relu(layer(distance.combine, inner)))[0]


def matrix(distance, x, y):
    return torch.tensor([[score(distance, a, b) for b in y] for a in x], dtype=torch.float64)


def quadruplets(similarity, labels, count=1, per_class=False):
    """(i, j, k, l), Sec. 3.1."""
    size = len(labels)
    pairs = [(i, j) for i, j in itertools.combinations(range(size), 2) if labels[i] == labels[j]]
    pairs = [pair for pair in pairs if any(label != labels[pair[0]] for label in labels)]
    pairs.sort(key=lambda pair: similarity[pair[0]][pair[1]])  # stable: the first in row-major order
    if per_class:
        pairs = [pair for label in sorted(set(labels)) for pair in [p for p in pairs if labels[p[0]] == label][:count]]
    else:
        pairs = pairs[:count]

    def hardest(end):
        others = [n for n in range(size) if labels[n] != labels[end]]
        return max(others, key=lambda n: (similarity[end][n], -n))

    return [(i, j, hardest(i), hardest(j)) for i, j in pairs]


def pointwise(distance, embeddings, labels, kind):
    """Eq. 1 with logistic regression, or the Fisher criterion, over the unordered pairs of a batch."""
    pairs = list(itertools.combinations(range(len(labels)), 2))
    scores = [score(distance, embeddings[i], embeddings[j]) for i, j in pairs]
    same = [labels[i] == labels[j] for i, j in pairs]
    if kind == "logistic":
        terms = [
            -math.log(p if y else 1 - p) for s, y in zip(scores, same, strict=True) for p in [1 / (1 + math.exp(-s))]
        ]
        return sum(terms) / max(1, len(terms))
    groups = [[s for s, y in zip(scores, same, strict=True) if y == wanted] for wanted in (True, False)]
    if not all(groups):
        return 0.0
    means = [sum(group) / len(group) for group in groups]
    spread = sum(sum((s - mean) ** 2 for s in group) / len(group) for group, mean in zip(groups, means, strict=True))
    return -((means[0] - means[1]) ** 2) / spread


def mahalanobis(weight, x, y):
    """Distances of normalized rows under the metric L^T L of Sec. 1."""
    form, (x, y) = weight.T @ weight, ([row / row.norm() for row in each] for each in (x, y))
    return torch.stack([torch.stack([((a - b) @ form @ (a - b)).sqrt() for b in y]) for a in x])


def norm(x, y):
    return sum((a - b) ** 2 for a, b in zip(x, y, strict=True)) ** 0.5


def objective(
    distance,
    embeddings,
    labels,
    *,
    alpha=0.5,
    beta=1.0,
    weight=0.5,
    count=1,
    per_class=False,
    power=1,
    scaling=True,
    mined=None,
):
    """E_m and E_e times its weight, Eq. 3 and 4."""
    size, x = len(labels), [unit(row.tolist()) for row in embeddings]
    s = matrix(distance, embeddings, embeddings).tolist()
    found = quadruplets(s, labels, count, per_class) if mined is None else mined
    if scaling:
        values = [s[i][j] for i in range(size) for j in range(size) if i != j]
        low, high = min(values), max(values)
        s = [[(value - low) / (high - low) if high > low else 0.0 for value in row] for row in s]
    metric = embedding = 0.0
    for i, j, k, other in found:
        d_ij, d_ik, d_jl = (norm(x[a], x[b]) ** power for a, b in ((i, j), (i, k), (j, other)))
        metric += max(0.0, alpha + s[i][k] - s[i][j]) + max(0.0, alpha + s[j][other] - s[i][j])
        embedding += max(0.0, beta + d_ij - d_ik) + max(0.0, beta + d_ij - d_jl)
    number = max(1, len(found))
    return metric / number, weight * embedding / number
