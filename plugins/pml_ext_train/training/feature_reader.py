"""Batches and passes from kept features or activations."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..networks.modes import evaluation_mode
from .batches import Batch, Batches, Pass
from .features import Features


@torch.no_grad()
def with_features(
    batches: Iterable[tuple[Tensor | None, Tensor]],
    kept: Features,
    rest: nn.Module,
    embedder: nn.Module,
) -> Iterator[Pass]:
    """Yield passes from kept features or activations; ``rest`` leads from these to features.

    ``batches`` have images or None, and labels.
    """
    start = 0
    with evaluation_mode(rest, embedder):
        for images, labels in batches:
            rest.eval()
            embedder.eval()
            rows = kept[start : start + len(labels)].to(labels.device).float()
            start += len(labels)
            features = rest(rows)
            yield Pass(images, features, embedder(features), labels)


class FeatureReader:
    """Reader of batches of features or activations; see :class:`~.batches.BatchReader`."""

    def __init__(self, views: Sequence[Features], labels: NDArray[np.int64], device: torch.device) -> None:
        self.views = views
        self.labels = torch.as_tensor(labels)
        self._device = device

    def read(self, batches: Batches, labels: NDArray[np.int64] | None = None) -> Iterator[Batch]:
        """Iterate over features or activations and labels; the seed selects the view."""
        # At once, as a reader of images does: a resumed epoch restores the random numbers of its checkpoint after it.
        torch.empty((), dtype=torch.int64).random_()
        return self._batches(batches, labels)

    def _batches(self, batches: Batches, labels: NDArray[np.int64] | None) -> Iterator[Batch]:
        labels_of_images = self.labels if labels is None else torch.from_numpy(labels)
        for batch in batches:
            indices, seeds = torch.tensor(batch, dtype=torch.int64).T
            features = self.views[0][indices]
            for number, view in enumerate(self.views[1:], start=1):
                seen = seeds % len(self.views) == number
                features[seen] = view[indices[seen]]
            yield Batch(features.to(self._device).float(), labels_of_images[indices].to(self._device))

    naming_images = staticmethod(contextlib.nullcontext)  # no workers read images

    def close(self) -> None:
        """Do nothing."""
