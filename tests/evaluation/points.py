"""Points around the centers of classes, their neighbors by a loop, and metrics of one query by loops."""

import math

import torch


def data(count=60, classes=7, size=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (count,), generator=generator)
    return torch.randn(count, size, generator=generator) + 0.8 * labels[:, None], labels


def sorted_distances(query, reference, power=2):
    """``[[(distance, index), ...], ...]`` of each query, nearest first, by a loop in float64."""
    found = []
    for point in query.double():
        distances = [float((point - other).abs().pow(power).sum() ** (1 / power)) for other in reference.double()]
        found.append(sorted(zip(distances, range(len(reference)), strict=True)))
    return found


def ranked(query, reference, itself):
    """Indices of the references from near to far, the query left out."""
    rows = sorted_distances(query, reference)
    return [[j for _, j in row if not (itself and j == i)] for i, row in enumerate(rows)]


def metrics_by_loops(right, relevant, at):
    """Metrics of one query from a list of booleans, nearest first; NaN where a lone query has none."""
    found = {f"recall_at_{k}": float(any(right[:k])) for k in at}
    found |= {f"precision_at_{k}": sum(right[:k]) / k for k in at}
    found |= dict.fromkeys(("r_precision", "mean_average_precision_at_r", "mean_average_precision"), math.nan)
    found["mean_reciprocal_rank"] = next((1 / (j + 1) for j, hit in enumerate(right) if hit), 0.0)
    if relevant:
        first = right[:relevant]
        found["r_precision"] = sum(first) / min(relevant, len(right))
        for name, seen in (("mean_average_precision_at_r", first), ("mean_average_precision", right)):
            found[name] = sum(sum(right[: j + 1]) / (j + 1) for j, hit in enumerate(seen) if hit) / relevant
    return found


def ndcg(gains, k):
    """NDCG@K of a gallery's gains, nearest first."""
    dcg, ideal = (
        sum(gain / math.log2(j + 2) for j, gain in enumerate(ranking[:k]))
        for ranking in (gains, sorted(gains, reverse=True))
    )
    return dcg / ideal


def never(*_):
    """Stand in for a function that must not be called."""
    raise AssertionError("called")
