"""Findings of a run's test: recall by class, confusions, counts."""

from collections import Counter
from typing import Any

import numpy as np
from torch import Tensor

from pml_ext.evaluation.metrics import class_means

from ..training import View, clustered, nearest


def queries_of_metrics(view: View) -> dict[str, Any]:
    """Return the part of ``metrics.json`` about queries.

    ``queries``: the number behind each metric. ``without_answer``: unanswerable queries, and classes with only
    such. ``blank``: why metrics are missing, by name.
    """
    found = nearest(view, view.queries)
    clusters = clustered(view, view.queries)
    answerable = has_answer(view)
    labels = view.images(view.queries).labels
    names = view.images(view.queries).class_names
    lone = np.setdiff1d(labels, labels[answerable.numpy()])
    return {
        "queries": found.counted | clusters.counted,
        "without_answer": {
            "queries": int((~answerable).sum()),
            "classes": [str(names[label]) for label in lone.tolist()],
        },
        "blank": found.blank | clusters.blank,
    }


def has_answer(view: View) -> Tensor:
    """Return whether each query has a right image in the gallery, ``[Q]``, on the CPU."""
    return nearest(view, view.queries).relevant > 0


def recall_by_class(view: View) -> dict[str, float]:
    """Return Recall@1 by class name over answerable queries, the worst first."""
    labels = view.true_labels(view.queries).cpu()
    names = view.images(view.queries).class_names
    right = nearest(view, view.queries).right[:, :1].any(dim=1).double()
    found, means = class_means(right, labels, has_answer(view))
    order = means.argsort(stable=True).tolist()
    return {str(names[int(found[place])]): round(float(means[place]), 4) for place in order}


def confusions(view: View) -> list[tuple[str, str, int]]:
    """Return the ten most frequent confusions: query class, class found, count."""
    result = nearest(view, view.queries)
    queries = view.images(view.queries)
    searched = view.images(view.data.gallery_of(view.queries))
    confused: Counter[tuple[int, int]] = Counter()
    mistaken = has_answer(view) & ~result.right[:, :1].any(dim=1)
    for query in mistaken.nonzero().flatten().tolist():
        other = int(result.indices[query, 0])
        if other < 0:  # the query's own group is its whole gallery
            continue
        confused[queries.labels[query], searched.labels[other]] += 1
    names = queries.class_names
    return [(str(names[label]), str(names[other]), count) for (label, other), count in confused.most_common(10)]


def counts(view: View) -> dict[str, dict[str, int]]:
    """Return ``{split: {"images": N, "classes": C, "unreadable": U}}``.

    ``"unreadable"`` appears if files were left out. Listed data have ``"pairs"`` or ``"triplets"`` instead of
    classes.
    """
    numbers: dict[str, dict[str, int]] = {}
    for name, images in view.splits.items():
        numbers[name] = {"images": len(images)}
        if images.tuples is not None:
            numbers[name][images.tuples.kind] = len(images.tuples)
        elif view.data.labeled:
            numbers[name]["classes"] = len(np.unique(images.labels))
        if name in view.data.unreadable:
            numbers[name]["unreadable"] = len(view.data.unreadable[name])
    return numbers
