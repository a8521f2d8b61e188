"""Features of the splits of a run, and activations before a cut, each computed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..data import LabeledImages
from .activations import TrunkCut
from .built import Built
from .features import FeatureCache, Features


class KeptFeatures:
    """The features of a run's splits under its trunk, and the activations of its first part.

    ``batch_size`` is the number of images in a forward pass; ``tell`` gets a line before images go through the trunk.
    """

    def __init__(self, built: Built, batch_size: int, tell: Callable[[str], None]) -> None:
        self._built = built
        self._batch_size = batch_size
        self._tell = tell
        self._features: dict[tuple[TrunkCut | None, str, int], Features] = {}  # by cut, split and view
        self._caches: dict[tuple[TrunkCut | None, bool], FeatureCache] = {}  # of plain (False) or augmented images

    def features(self, split: str, view: int = 0) -> Features:
        """Return the frozen trunk's features of a split, computed once; views above 0 are of augmented images.

        Vectors are features already.
        """
        data = self._built.data
        if data.has_vectors:
            return Features.of_vectors(data.images(split).vectors)
        return self._cached(None, split, view)

    def activations(self, cut: TrunkCut, split: str, view: int = 0) -> Features:
        """Return the activations of a split before a cut, ``[N, *shape]``, as :meth:`features`."""
        return self._cached(cut, split, view)

    def _cached(self, cut: TrunkCut | None, split: str, view: int) -> Features:
        key = (cut, split, view)
        if key not in self._features:
            data = self._built.data
            images = data.training_images if view else data.images(split)
            self._features[key] = self._cache_for(cut, images, is_augmented=bool(view)).of(images, view)
        return self._features[key]

    def _cache_for(self, cut: TrunkCut | None, images: LabeledImages, is_augmented: bool) -> FeatureCache:
        """Return the cache of features, or of activations before a cut, of plain or of augmented images."""
        key = (cut, is_augmented)
        if key not in self._caches:
            self._caches[key] = self._new_cache(cut, repr(images.transform) if is_augmented else "")
        return self._caches[key]

    def _new_cache(self, cut: TrunkCut | None, augmentation: str) -> FeatureCache:
        built = self._built
        about: list[Any] = [built.data.preprocessing.model_dump(), augmentation]
        shared = (built.device, self._batch_size, built.recipe.data.workers, self._tell)
        if cut is None:
            return FeatureCache(built.network.trunk, built.network.features, about, *shared)
        about.append(cut.table.precision)
        return FeatureCache(cut.stem, cut.shape, about, *shared, dtype=cut.dtype)
