"""A run's network on its data: labels, and embeddings that are computed once."""

import functools
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

from pml_ext.distributed import num_processes, rank
from pml_ext.errors import DataError, PluginWarning, TrainingError
from pml_ext.run_view import RunView

from ..data import DataSplits, LabeledImages
from ..networks import VectorInput, use_channels_last
from ..networks.modes import evaluation_mode
from ..recipe import Recipe, build_network, build_relation
from . import checkpoint
from .activations import GIGABYTE, TrunkCut, size_of
from .batch_norm import synchronize_batch_norm
from .batches import Pass, embed_batches
from .engine import first_nonfinite
from .feature_reader import with_features
from .features import FeatureCache, Features, KeptFeatures
from .run_data import load_run_data

_FEATURES_BATCH = 4096  # features in a forward pass of the embedder alone
_CPU_BATCH = 16  # least number of images in a forward pass of a test on a CPU
_CPU_VALUES = 2_500_000  # values of their pixels: 16 images of 224 pixels take 0.6 GB less than 66, and no longer
T = TypeVar("T")
Layer = Literal["embedder", "trunk"]


class NoLabelsError(DataError):
    """Listed pairs and triplets have no labels."""


class View:
    """The part of a run that components see (:class:`pml_ext.plugin.RunView`)."""

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        seed: int = 0,
        device: str = "cpu",
        root: Path | None = None,
        tell: Callable[[str], None] = lambda text: None,
        splits: DataSplits | None = None,
    ) -> None:
        self.recipe = recipe
        self.folder = folder
        self.seed = seed
        self.device = torch.device(device)
        self.rank = rank()
        self.processes = num_processes()
        self.epoch = 0
        self.tell = tell
        checkpoint.seed_all(seed)
        self.data = load_run_data(recipe, seed, root, tell, splits)
        self.splits = self.data.splits
        self.queries = self.data.queries
        self.pseudo_labels: NDArray[np.int64] | None = None  # of the training images, in place of the data's
        relation = build_relation(recipe.data, self.data.training_images.class_names)
        self.relation = None if relation is None else relation.to(self.device)
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
        self._results: dict[Any, Any] = {}  # computed with the network's current weights
        new_cache = functools.partial(
            FeatureCache, device=self.device, batch_size=self.batch_size, workers=recipe.data.workers, tell=tell
        )
        self.kept = KeptFeatures(self.data, self.network, new_cache)

    @functools.cached_property
    def identity(self) -> str:
        """Digest of recipe and seed; excludes epochs and trackers, which may change."""
        tables = self.recipe.as_dict()
        del tables["schedule"]["epochs"]
        del tables["track"]
        text = json.dumps([tables, self.seed], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _choose_memory_format(self) -> torch.memory_format:
        """Convert the trunk to the memory format of images; return it."""
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
    def batch_size(self) -> int:
        """Images per forward pass of a test; larger batches save no time on a CPU."""
        most = self.recipe.evaluation.batch_size
        if self.device.type != "cpu":
            return most
        return min(most, max(_CPU_BATCH, _CPU_VALUES // math.prod(self.data.preprocessing.input_shape)))

    def _forward_passes(self, split: str, pixels: bool = False) -> Iterator[Pass]:
        """A split's passes; they have images only with ``pixels`` or without kept features."""
        kept, rest = self._kept_inputs(split)
        if kept is None:
            return self._passes_of_images(split, self.trunk, self.embedder)
        if pixels:
            passes = self._passes_of_images(split, nn.Identity(), nn.Identity())
            batches = ((each.images, each.labels) for each in passes)
            return with_features(batches, kept, rest, self.embedder)
        batch_size = _FEATURES_BATCH if self.frozen else self.batch_size
        return with_features(self.batches_of_labels(split, batch_size), kept, rest, self.embedder)

    def _kept_inputs(self, split: str) -> tuple[Features | None, nn.Module]:
        """A split's kept features or activations, or None, and the rest of the trunk.

        Activations of test images are float32, so that they give the metrics of the images.
        """
        if self.frozen:
            return self.kept.of(split), nn.Identity()
        if self.cut is None or split not in {"validation", *self._kept_tests(self.cut)}:
            return None, self.trunk
        precision = self.cut.table.precision if split == "validation" else "float32"
        return self.kept.of(split, cut=self.cut, precision=precision), self.cut.rest

    def _kept_tests(self, cut: TrunkCut) -> set[str]:
        """Splits that are tested repeatedly and whose activations fit into the limit."""
        if not (self.recipe.evaluation.baselines or self.recipe.evaluation.test_every):
            return set()
        tested = {self.queries, self.data.gallery_of(self.queries)}
        images = sum(len(self.images(split)) for split in tested)
        trained = size_of(cut, len(self.images("train")), self.recipe.model.views)
        return tested if trained + images * cut.bytes_in("float32") <= cut.table.gigabytes * GIGABYTE else set()

    def untrained_features(self, split: str) -> Tensor:
        """A split's features ``[N, F]`` before training; kept for other runs under a cut."""
        if self.cut is None:
            return self.embeddings(split, "trunk")
        return self.kept.features_now(split)[:].float().to(self.device)

    def batches_of_labels(self, split: str, batch_size: int) -> Iterator[tuple[None, Tensor]]:
        """Yield label batches without images, for passes from the cache."""
        labels = torch.as_tensor(self.images(split).labels, device=self.device)
        return ((None, part) for part in torch.split(labels, batch_size))

    def _passes_of_images(self, split: str, trunk: nn.Module, embedder: nn.Module) -> Iterator[Pass]:
        images = self.images(split)
        return embed_batches(trunk, embedder, images, self.device, self.batch_size, self.recipe.data.workers)

    def embeddings(self, split: str, layer: Layer = "embedder") -> Tensor:
        """The network's unnormalized output for a split, ``[N, D]`` float32; the embedder's is kept."""
        if layer == "embedder":
            return self.once(("embeddings", split), lambda: self.embedded(split)["embeddings"])
        return torch.cat([features for features, _ in self._batches(split, layer)])

    def normalized_embeddings(self, split: str) -> Tensor:
        """Normalized :meth:`embeddings`; TrainingError if any is not finite."""
        embeddings = self.embeddings(split)
        bad = first_nonfinite({"": embeddings})
        if bad is not None:
            raise TrainingError(f"the network gives {bad.value} for test images; try a lower optimizer.lr")
        return nn.functional.normalize(embeddings)

    def batches(self, split: str, layer: Layer = "embedder") -> Iterator[tuple[Tensor, Tensor]]:
        """Yield :meth:`embeddings` and :meth:`labels` batch by batch, ``[B, D]`` and ``[B]``."""
        self.labels(split)  # DataError for data without labels
        return self._batches(split, layer)

    def _batches(self, split: str, layer: Layer) -> Iterator[tuple[Tensor, Tensor]]:
        if layer not in ("embedder", "trunk"):
            raise ValueError(f"layer must be 'embedder' or 'trunk', not {layer!r}")
        for each in self._forward_passes(split):
            rows = each.features if layer == "trunk" else each.embeddings
            yield rows.float(), each.labels

    def labels(self, split: str) -> Tensor:
        """Labels of a split, ``[N]``, int64; ``"train"`` may have clusters."""
        if split == "train" and self.pseudo_labels is not None:
            return torch.as_tensor(self.pseudo_labels, device=self.device)
        return self.true_labels(split)

    def true_labels(self, split: str) -> Tensor:
        """Labels of the data; DataError for listed pairs or triplets."""
        if self.data.listed is not None:
            raise NoLabelsError(f"{self.data.name} lists {self.data.listed.kind}; its {self.data.noun} have no labels")
        return torch.as_tensor(self.images(split).labels, dtype=torch.int64, device=self.device)

    def images(self, split: str) -> LabeledImages:
        """A split's images without augmentation; ValueError for an unknown split."""
        return self.data.images(split)

    def embedded(
        self, split: str, also: Callable[[Tensor], Tensor] | None = None, features: bool = False
    ) -> dict[str, Tensor]:
        """Compute and keep a split's embeddings; in the same pass, ``also`` of its images.

        ``features`` adds the trunk's features.
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
        self._results["embeddings", split] = held["embeddings"]
        return held

    @torch.no_grad()
    def embed_features(self, split: str, features: Tensor) -> None:
        """Compute and keep a split's embeddings from its features ``[N, F]``."""
        with evaluation_mode(self.embedder):
            parts = [self.embedder(part) for part in torch.split(features, _FEATURES_BATCH)]
        self._results["embeddings", split] = torch.cat(parts)

    def once(self, key: Any, compute: Callable[[], T]) -> T:
        """``compute()``, called once per key until the network changes."""
        if key not in self._results:
            self._results[key] = compute()
        return self._results[key]  # type: ignore[no-any-return]

    def changed(self) -> None:
        """Clear results of the network's old weights."""
        self._results.clear()

    def warn(self, text: str) -> None:
        """Show a warning about a plugin."""
        warnings.warn(text, PluginWarning, stacklevel=2)

    def checkpoint(self, name: str) -> Path:
        """Path of the checkpoint ``"last"``, ``"within"``, ``"best"``, ``"model"`` or ``"before"``."""
        return self.folder / "checkpoints" / f"{name}.pt"

    def call(self, part: Any, method: str, *more: Any) -> Any:
        """Call a component's method with the run, if it has that method."""
        view: RunView = self  # all that a component may use
        function = getattr(part, method, None)
        return function(view, *more) if callable(function) else None
