"""Slow forms of the equations, in float64, one anchor and one pair at a time."""

import math
from itertools import chain
from types import SimpleNamespace

import torch

DEFAULTS = {
    "alpha_pos": 0.5,
    "beta_pos": 0.5,
    "alpha_neg": 1.0,
    "beta_neg": 0.01,
    "mvc_weight": 1.0,
    "mvc_gamma": 0.2,
    "mvc_reduction": "mean",
    "detach_target": False,
    "skip_unmined": False,
    "delta": 1.0,
    "averaging": "log",
    "epsilon": 0.1,
    "mining": True,
    "statistics": None,
}
G = {"log": torch.log, "sqrt": torch.sqrt, "const": lambda value: value}


def cosine(x, y):
    return sum(a * b for a, b in zip(x, y, strict=True)) / (torch.linalg.norm(x) * torch.linalg.norm(y))


def likelier(z, mean_pos, std_pos, mean_neg, std_neg):
    """Eq. (18) before it is multiplied out: the ratio of two normal densities."""

    def density(mean, std):
        return torch.exp(-((z - mean) ** 2) / (2 * std**2)) / (std * math.sqrt(2 * math.pi))

    return density(mean_pos, std_pos) / density(mean_neg, std_neg)


def pairs_from_labels(labels, ref_labels=None):
    columns = labels if ref_labels is None else ref_labels
    same = [
        [(i, j) for j in range(len(columns)) if labels[i] == columns[j] and (ref_labels is not None or i != j)]
        for i in range(len(labels))
    ]
    other = [[(i, j) for j in range(len(columns)) if labels[i] != columns[j]] for i in range(len(labels))]
    return [*chain(*same)], [*chain(*other)]


def pairs_of(indices):
    a1, p, a2, n = indices if len(indices) == 4 else (indices[0], indices[1], indices[0], indices[2])
    return (
        sorted(set(zip(a1.tolist(), p.tolist(), strict=True))),
        sorted(set(zip(a2.tolist(), n.tolist(), strict=True))),
    )


def anchor_terms(x, pairs, references=None, similarity=cosine, **settings):
    """The three terms of each anchor: two of Eq. (27), one of Eq. (29) without its weight."""
    h = SimpleNamespace(**{**DEFAULTS, **settings})
    references = x if references is None else references
    zero = 0 * x.sum()
    terms = []
    for i in range(len(x)):
        p = [similarity(x[i], references[j]) for a, j in pairs[0] if a == i]
        n = [similarity(x[i], references[j]) for a, j in pairs[1] if a == i]
        if not p or not n:
            terms.append((zero, zero, zero))
            continue
        target = h.mvc_gamma * sum(p) / len(p) + (1 - h.mvc_gamma) * sum(n) / len(n)
        target = target.detach() if h.detach_target else target
        variance = sum((s - target) ** 2 for s in n) / (len(n) if h.mvc_reduction == "mean" else 1)
        hard_p = [s for s in p if not h.mining or s < max(n) + h.epsilon]
        hard_n = [s for s in n if not h.mining or s > min(p) - h.epsilon]
        if h.skip_unmined and not hard_p and not hard_n:
            terms.append((zero, zero, zero))
            continue
        delta_p = len(n) / len(p) ** 2 if h.delta == "ratio" else h.delta
        delta_n = len(p) / len(n) ** 2 if h.delta == "ratio" else h.delta
        g = G[h.averaging]
        if h.statistics is None:
            pull = [torch.exp((h.alpha_pos - s) / h.beta_pos) for s in hard_p]
            push = [torch.exp((s - h.alpha_neg) / h.beta_neg) for s in hard_n]
        else:
            pull = [1 / likelier(s, *h.statistics) for s in hard_p]
            push = [likelier(s, *h.statistics) for s in hard_n]
        positive = g(1 + zero + delta_p * sum(pull))
        negative = g(1 + zero + delta_n * sum(push))
        terms.append((positive, negative, variance))
    return terms


def cbml(x, pairs, references=None, similarity=cosine, **settings):
    """Eq. (30): the mean over anchors."""
    weight = {**DEFAULTS, **settings}["mvc_weight"]
    terms = anchor_terms(x, pairs, references, similarity, **settings)
    return sum(p + n + weight * v for p, n, v in terms) / len(terms)


def batch(rows=10, size=4, classes=3, seed=0, near=0.6):
    """Embeddings that lie about their class's center, so that some pairs are hard and some are not."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (rows,), generator=generator)
    centers = torch.randn(classes, size, generator=generator, dtype=torch.float64)
    noise = torch.randn(rows, size, generator=generator, dtype=torch.float64)
    scale = 0.5 + torch.rand(rows, 1, generator=generator, dtype=torch.float64) * 3
    return (scale * (centers[labels] + near * noise)).requires_grad_(), labels
