"""Features and activations of a run's splits, each computed once."""

from collections.abc import Callable
from typing import Any

from pml_ext.distributed import num_processes

from ..networks import Network
from .activations import DTYPES, Precision, TrunkCut
from .features import FeatureCache, Features, Remainder
from .run_data import RunData


class KeptFeatures:
    """Features of a run's splits, and activations before its cuts.

    ``new_cache(trunk, shape, about)`` returns a :class:`FeatureCache`.
    """

    def __init__(self, data: RunData, network: Network, new_cache: Callable[..., FeatureCache]) -> None:
        self._data = data
        self._network = network
        self._new_cache = new_cache
        self._features: dict[tuple[Any, ...], Features] = {}
        self._caches: dict[tuple[Any, ...], FeatureCache] = {}

    def of(
        self,
        split: str,
        view: int = 0,
        cut: TrunkCut | None = None,
        precision: Precision | None = None,
        remainder: Remainder | None = None,
    ) -> Features:
        """A split's features under the frozen trunk, or its activations before a cut.

        Views above 0 are augmented. Vectors are features already.
        """
        if self._data.has_vectors:
            return Features.of_vectors(self._data.images(split).vectors)
        if cut is not None and precision is None:
            precision = cut.table.precision
        key = (cut, split, view, precision)
        if key not in self._features:
            images = self._data.training_images if view else self._data.images(split)
            augmentation = repr(images.transform) if view else ""
            shared = (cut, precision, augmentation)
            if shared not in self._caches:
                self._caches[shared] = self._cache(*shared)
            self._features[key] = self._caches[shared].of(images, view, remainder)
        return self._features[key]

    def features_now(self, split: str) -> Features:
        """A split's features before the trunk trains; other runs share them."""
        return self._cache(None, None, "").of(self._data.images(split))

    def compute_both(self, cut: TrunkCut, split: str) -> None:
        """Compute a split's activations and, in a single process, its present features."""
        remainder = Remainder(cut.rest, self._cache(None, None, "")) if num_processes() == 1 else None
        self.of(split, cut=cut, remainder=remainder)

    def _cache(self, cut: TrunkCut | None, precision: Precision | None, augmentation: str) -> FeatureCache:
        about: list[Any] = [self._data.preprocessing.model_dump(), augmentation]
        if cut is None or precision is None:
            return self._new_cache(self._network.trunk, self._network.features, about)
        return self._new_cache(cut.stem, cut.shape, [*about, precision], dtype=DTYPES[precision])
