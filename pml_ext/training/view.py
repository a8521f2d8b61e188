"""A run's network on its data, as components may use it: labels, and embeddings that are computed once."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..data import LabeledImages
from ..distributed import num_processes, rank, synchronize_batch_norm
from ..errors import DataError, PluginWarning, TrainingError
from ..networks.memory_format import use_channels_last
from ..networks.network import VectorInput
from ..recipe import Recipe, build_network, build_relation, load_recipe
from ..registry.hooks import RunView
from ..relations import Relation
from . import checkpoint
from .activations import TrunkCut
from .batches import Pass, embed_batches
from .engine import first_nonfinite
from .feature_reader import with_features
from .features import FeatureCache, Features
from .folder import RECIPE
from .run_data import load_run_data

_FEATURES_BATCH = 4096  # features in a forward pass of the embedder alone
_CPU_BATCH = 16  # least number of images in a forward pass of a test on a CPU
_CPU_VALUES = 10_000_000  # values of their pixels
T = TypeVar("T")
Layer = Literal["embedder", "trunk"]


class NoLabelsError(DataError):
    """The data are listed pairs or triplets, whose images have no labels."""


class View:
    """The part of a run that components see (:class:`pml_ext.plugin.RunView`): data, network, embeddings.

    ``root`` is the folder of the data, where the data set wants one; ``tell`` gets a line before a long step.
    """

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        seed: int = 0,
        device: str = "cpu",
        root: Path | None = None,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.recipe = recipe
        self.folder = folder
        self.seed = seed
        self.device = torch.device(device)
        self.rank = rank()
        self.processes = num_processes()
        self.epoch = 0
        self.identity = _identity_of(recipe, seed)  # in all checkpoints of the run
        self._kept: dict[Any, Any] = {}  # results computed with the network's current weights
        checkpoint.seed_all(seed)
        self.data = load_run_data(recipe, seed, root, tell)
        self.splits = self.data.splits
        self.queries = self.data.queries
        self.pseudo_labels: NDArray[np.int64] | None = None  # of the training images, in place of the data's
        self.relation = self._build_relation()
        self.network = build_network(recipe.model, self.data.preprocessing)
        if self.processes > 1:
            self.network.trunk = synchronize_batch_norm(self.network.trunk, self.device)
            self.network.embedder = synchronize_batch_norm(self.network.embedder, self.device)
        self.network.to(self.device)
        self.trunk = self.network.trunk
        self.embedder = self.network.embedder
        self.memory_format = self._choose_memory_format()
        self.frozen = recipe.model.freeze == "trunk"  # then features are computed once, or given as vectors
        self.cut: TrunkCut | None = None  # of the stage that trains, where it trains from cached activations
        self._features: dict[tuple[TrunkCut | None, str, int], Features] = {}  # by cut, split and view
        self._caches: dict[tuple[TrunkCut | None, bool], FeatureCache] = {}  # of plain (False) or augmented images
        self._tell = tell

    def _build_relation(self) -> Relation | None:
        """Return the relation of labels that the recipe names, on the run's device."""
        relation = build_relation(self.recipe.data, self.data.training_images.class_names)
        return None if relation is None else relation.to(self.device)

    def _choose_memory_format(self) -> torch.memory_format:
        """Return the memory format of images; convert the trunk to the same."""
        wanted = self.recipe.engine.channels_last
        preprocessing = self.data.preprocessing
        if isinstance(preprocessing, VectorInput):
            return torch.contiguous_format
        if wanted is None and self.device.type == "cpu":
            return use_channels_last(self.trunk, preprocessing.channels, preprocessing.image_size)
        if not wanted:
            return torch.contiguous_format
        self.trunk.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return torch.channels_last

    @property
    def _batch_size(self) -> int:
        """Images in a forward pass of a test: few on a CPU, where larger batches take memory and save no time."""
        most = self.recipe.evaluation.batch_size
        if self.device.type != "cpu":
            return most
        values = math.prod(self.data.preprocessing.input_shape)
        return min(most, max(_CPU_BATCH, _CPU_VALUES // values))

    def _forward_passes(self, split: str, pixels: bool = False) -> Iterator[Pass]:
        """Yield a split's passes as :func:`embed_batches`; without images where the features are kept.

        With ``pixels`` there are always images.
        """
        if self.frozen and pixels:
            passes = self._passes_of_images(split, nn.Identity(), nn.Identity())
            batches = ((each.images, each.labels) for each in passes)
            return with_features(batches, self.features(split), nn.Identity(), self.embedder)
        if self.frozen:
            labels = self._batches_of_labels(split, _FEATURES_BATCH)
            return with_features(labels, self.features(split), nn.Identity(), self.embedder)
        if self.cut is not None and split == "validation":
            labels = self._batches_of_labels(split, self._batch_size)
            return with_features(labels, self.activations(self.cut, split), self.cut.rest, self.embedder)
        return self._passes_of_images(split, self.trunk, self.embedder)

    def _batches_of_labels(self, split: str, batch_size: int) -> Iterator[tuple[None, Tensor]]:
        """Yield batches of a split without images, for what is computed from the cache."""
        labels = torch.as_tensor(self.images(split).labels, device=self.device)
        return ((None, part) for part in torch.split(labels, batch_size))

    def _passes_of_images(self, split: str, trunk: nn.Module, embedder: nn.Module) -> Iterator[Pass]:
        images = self.images(split)
        return embed_batches(trunk, embedder, images, self.device, self._batch_size, self.recipe.data.workers)

    def features(self, split: str, view: int = 0) -> Features:
        """Return the frozen trunk's features of a split, computed once; views above 0 are of augmented images.

        Vectors are features already.
        """
        if self.data.has_vectors:
            return Features.of_vectors(self.images(split).vectors)
        return self._cached(None, split, view)

    def activations(self, cut: TrunkCut, split: str, view: int = 0) -> Features:
        """Return the activations of a split before a cut, ``[N, *shape]``, as :meth:`features`."""
        return self._cached(cut, split, view)

    def _cached(self, cut: TrunkCut | None, split: str, view: int) -> Features:
        key = (cut, split, view)
        if key not in self._features:
            if view:
                images = self.data.training_images
            else:
                images = self.images(split)
            self._features[key] = self._cache_for(cut, images, is_augmented=bool(view)).of(images, view)
        return self._features[key]

    def _cache_for(self, cut: TrunkCut | None, images: LabeledImages, is_augmented: bool) -> FeatureCache:
        """Return the cache of features, or of activations before a cut, of plain or of augmented images."""
        key = (cut, is_augmented)
        if key not in self._caches:
            if is_augmented:
                augmentation = repr(images.transform)
            else:
                augmentation = ""
            about: list[Any] = [self.data.preprocessing.model_dump(), augmentation]
            shared = (self.device, self._batch_size, self.recipe.data.workers, self._tell)
            if cut is None:
                cache = FeatureCache(self.trunk, self.network.features, about, *shared)
            else:
                about.append(cut.table.precision)
                cache = FeatureCache(cut.stem, cut.shape, about, *shared, dtype=cut.dtype)
            self._caches[key] = cache
        return self._caches[key]

    def embeddings(self, split: str, layer: Layer = "embedder") -> Tensor:
        """Return the network's output for a split, not normalized, ``[N, D]`` float32; the embedder's is kept."""
        if layer == "embedder":
            return self.once(("embeddings", split), lambda: self.embedded(split)["embeddings"])
        return torch.cat([features for features, _ in self._batches(split, layer)])

    def normalized_embeddings(self, split: str) -> Tensor:
        """Return :meth:`embeddings`, normalized; TrainingError if one is NaN or infinite."""
        embeddings = self.embeddings(split)
        bad = first_nonfinite({"": embeddings})
        if bad is not None:
            _, value = bad
            raise TrainingError(f"the network gives {value} for images to test; try a lower optimizer.lr")
        return nn.functional.normalize(embeddings)

    def batches(self, split: str, layer: Layer = "embedder") -> Iterator[tuple[Tensor, Tensor]]:
        """Yield :meth:`embeddings` and :meth:`labels` batch by batch, ``[B, D]`` and ``[B]``, to spare memory."""
        self.labels(split)  # DataError for data without labels
        return self._batches(split, layer)

    def _batches(self, split: str, layer: Layer) -> Iterator[tuple[Tensor, Tensor]]:
        if layer not in ("embedder", "trunk"):
            raise ValueError(f"layer must be 'embedder' or 'trunk', not {layer!r}")
        for each in self._forward_passes(split):
            rows = each.features if layer == "trunk" else each.embeddings
            yield rows.float(), each.labels

    def labels(self, split: str) -> Tensor:
        """Return the labels of a split, ``[N]``, int64, on the run's device; which may be clusters for ``"train"``."""
        if split == "train" and self.pseudo_labels is not None:
            return torch.as_tensor(self.pseudo_labels, device=self.device)
        return self.true_labels(split)

    def true_labels(self, split: str) -> Tensor:
        """Return the labels that the data have, which tests use; DataError for listed pairs or triplets."""
        listed = self.data.listed
        if listed is not None:
            raise NoLabelsError(f"{self.data.name} lists {listed.kind}, whose {self.data.noun} have no labels")
        return torch.as_tensor(self.images(split).labels, dtype=torch.int64, device=self.device)

    def images(self, split: str) -> LabeledImages:
        """Return the images of a split, without augmentation; ValueError if the run has no such split."""
        return self.data.images(split)

    def embedded(
        self, split: str, also: Callable[[Tensor], Tensor] | None = None, features: bool = False
    ) -> dict[str, Tensor]:
        """Compute a split's embeddings, which :meth:`embeddings` keeps, and ``also`` of its images, in one pass.

        With ``features``, those of the trunk too.
        """
        images = self.images(split)
        held: dict[str, Tensor] = {}
        start = 0
        for each in self._forward_passes(split, pixels=also is not None):
            parts = {"embeddings": each.embeddings}
            if features:
                parts["features"] = each.features
            if also is not None and each.images is not None:
                parts["also"] = also(each.images)
            for name, part in parts.items():  # in place: joining batches at the end would hold everything twice
                if name not in held:
                    held[name] = part.new_empty(len(images), *part.shape[1:])
                held[name][start : start + len(part)] = part
            start += len(each.embeddings)
        self._kept["embeddings", split] = held["embeddings"]
        return held

    def once(self, key: Any, compute: Callable[[], T]) -> T:
        """Return ``compute()``, called once per key until the network changes."""
        if key not in self._kept:
            self._kept[key] = compute()
        return self._kept[key]  # type: ignore[no-any-return]

    def changed(self) -> None:
        """Clear the results computed with the network's old weights."""
        self._kept.clear()

    def warn(self, text: str) -> None:
        """Show a warning about a plugin; a run keeps it, too."""
        warnings.warn(text, PluginWarning, stacklevel=2)

    def checkpoint(self, name: str) -> Path:
        """Return the path of a checkpoint: ``"last"``, ``"within"``, ``"best"``, ``"model"`` or ``"before"``."""
        return self.folder / "checkpoints" / f"{name}.pt"

    def call(self, part: Any, method: str, *more: Any) -> Any:
        """Call a component's method with the run and more arguments; return None if it has no such method."""
        view: RunView = self  # all that a component may use
        function = getattr(part, method, None)
        return function(view, *more) if callable(function) else None


def _identity_of(recipe: Recipe, seed: int) -> str:
    """Return a digest of a recipe and a seed; a run may get more epochs, and other trackers."""
    tables = recipe.as_dict()
    del tables["schedule"]["epochs"]
    del tables["track"]
    text = json.dumps([tables, seed], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def open_run(folder: Path, seed: int, device: str, root: Path | None = None) -> View:
    """Return the data and the trained network of a finished run.

    Raise DataError for data or a checkpoint that is missing, damaged or of another run. ``seed`` is that of the run,
    ``root`` the folder of the data.
    """
    recipe = load_recipe(str(folder / RECIPE))
    view = View(recipe, folder, seed, device, root)
    state = checkpoint.load(view.checkpoint("model"), view.device, view.identity)
    view.data.check_listing(folder, state["listing"])
    view.trunk.load_state_dict(state["trunk"])
    view.embedder.load_state_dict(state["embedder"])
    return view
