"""Features and activations of a run's splits, each computed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pml_ext.distributed import num_processes

from .activations import DTYPES, Precision, TrunkCut
from .features import FeatureCache, Features, Remainder
from .run_context import Built


class KeptFeatures:
    """The features of a run's splits, and the activations before its cuts.

    ``batch_size`` counts images per forward pass; ``tell`` receives a line before a pass.
    """

    def __init__(self, built: Built, batch_size: int, tell: Callable[[str], None]) -> None:
        self._built = built
        self._batch_size = batch_size
        self._tell = tell
        self._features: dict[tuple[Any, ...], Features] = {}
        self._caches: dict[tuple[Any, ...], FeatureCache] = {}

    def features(self, split: str, view: int = 0) -> Features:
        """Return the frozen trunk's features of a split; views above 0 are augmented.

        Vectors are features already.
        """
        data = self._built.data
        if data.has_vectors:
            return Features.of_vectors(data.images(split).vectors)
        return self._cached(None, split, view)

    def activations(self, cut: TrunkCut, split: str, view: int = 0, precision: Precision | None = None) -> Features:
        """Return the activations of a split before a cut, ``[N, *shape]``, in the cut's precision by default."""
        return self._cached(cut, split, view, precision or cut.table.precision)

    def features_now(self, split: str) -> Features:
        """Return a split's features under a trunk before its training; other runs share them."""
        return self._new_cache(None, None, "").of(self._built.data.images(split))

    def compute_both(self, cut: TrunkCut, split: str) -> None:
        """Compute the activations of a split, and in the same pass its present features.

        Several processes leave the features to :meth:`features_now`.
        """
        remainder = Remainder(cut.rest, self._new_cache(None, None, "")) if num_processes() == 1 else None
        self._cached(cut, split, 0, cut.table.precision, remainder)

    def _cached(
        self,
        cut: TrunkCut | None,
        split: str,
        view: int,
        precision: Precision | None = None,
        remainder: Remainder | None = None,
    ) -> Features:
        key = (cut, split, view, precision)
        if key not in self._features:
            data = self._built.data
            images = data.training_images if view else data.images(split)
            augmentation = repr(images.transform) if view else ""
            shared = (cut, precision, augmentation)
            if shared not in self._caches:
                self._caches[shared] = self._new_cache(*shared)
            self._features[key] = self._caches[shared].of(images, view, remainder)
        return self._features[key]

    def _new_cache(self, cut: TrunkCut | None, precision: Precision | None, augmentation: str) -> FeatureCache:
        built = self._built
        about: list[Any] = [built.data.preprocessing.model_dump(), augmentation]
        shared = (built.device, self._batch_size, built.recipe.data.workers, self._tell)
        if cut is None or precision is None:
            return FeatureCache(built.network.trunk, built.network.features, about, *shared)
        about.append(precision)
        return FeatureCache(cut.stem, cut.shape, about, *shared, dtype=DTYPES[precision])
