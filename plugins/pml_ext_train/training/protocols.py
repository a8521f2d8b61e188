"""Classification protocols: accuracies by class means."""

import numpy as np
import torch
from numpy.typing import NDArray

from pml_ext.errors import DataError
from pml_ext.evaluation.classification import nearest_class_mean, related_means
from pml_ext.evaluation.metrics import class_means

from ..recipe.schema import PROTOCOLS, TOP
from .view import View

Metrics = dict[str, float]


def classified(view: View, split: str) -> Metrics:
    """Accuracies under the recipe's classification protocols."""
    metrics: Metrics = {}
    for name, measure in (("nearest-class-mean", _nearest_class_mean), ("zero-shot", _zero_shot)):
        if name in view.recipe.evaluation.protocols:
            metrics |= {f"{PROTOCOLS[name]}_{top}": value for top, value in measure(view, split).items()}
    return metrics


def _nearest_class_mean(view: View, split: str) -> Metrics:
    """Accuracies by the class means of the gallery, or of half of the test images."""
    points = view.normalized_embeddings(split)
    labels = view.true_labels(split)
    searched = view.data.gallery_of(split)
    if searched != split:
        means = class_means(view.normalized_embeddings(searched), view.true_labels(searched))
        return nearest_class_mean(points, labels, *means, TOP)
    first = torch.as_tensor(first_halves(labels.cpu().numpy(), view.seed), device=labels.device)
    if bool(first.all()):
        raise DataError("evaluation.protocols: 'nearest-class-mean' needs a class with two test images; leave it out")
    means = class_means(points[first], labels[first])
    return nearest_class_mean(points[~first], labels[~first], *means, TOP)


def _zero_shot(view: View, split: str) -> Metrics:
    """Accuracies by means of unseen classes, made from related training classes."""
    assert view.data.parents is not None
    seen, means = class_means(view.normalized_embeddings("train"), view.true_labels("train"))
    train_names = view.images("train").class_names
    known_means = {train_names[label]: mean for label, mean in zip(seen.tolist(), means, strict=True)}
    labels = view.true_labels(split)
    new = torch.unique(labels)
    names = view.images(split).class_names
    new_means = related_means([names[label] for label in new.tolist()], known_means, view.data.parents)
    return nearest_class_mean(view.normalized_embeddings(split), labels, new, new_means, TOP)


def first_halves(labels: NDArray[np.int64], seed: int) -> NDArray[np.bool_]:
    """Mask ``[N]`` of a random half of each class, rounded up."""
    chosen = np.zeros(len(labels), dtype=bool)
    generator = np.random.default_rng(seed)
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        chosen[members[: (len(members) + 1) // 2]] = True
    return chosen
