"""A run's data and network, as components may use them: splits, labels, and embeddings that are computed once."""

from __future__ import annotations

import hashlib
import json
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..data import DataSplits, LabeledImages, hold_out_classes, prepare
from ..data.splits import Transform
from ..distributed import num_processes, rank, rank_0_first, synchronize_batch_norm
from ..errors import ConfigError, DataError, PluginWarning, counted
from ..evaluation import some_of_each_class
from ..networks.memory_format import use_channels_last
from ..networks.network import Preprocessing, VectorInput
from ..pairwise import ListedTuples
from ..recipe import (
    Recipe,
    augmentation_of,
    build_dataset,
    build_network,
    build_relation,
    load_recipe,
    preprocessing_of,
    vector_input_of,
)
from ..registry.hooks import RunView
from . import checkpoint
from .activations import TrunkCut
from .batches import embed_batches
from .features import FeatureCache, Features, with_features
from .folder import RECIPE

SAMPLE = "train_sample"  # the split of the training images that are tested, if not all are tested
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
        self.unreadable: dict[str, dict[str, str]] = {}  # by split: paths that could not be read, and why
        self.pseudo_labels: NDArray[np.int64] | None = None  # of the training images, in place of the data's
        self._load_data(root, tell)
        self.network = build_network(recipe.model, self._preprocessing)
        if self.processes > 1:
            self.network.trunk = synchronize_batch_norm(self.network.trunk, self.device)
        self.network.to(self.device)
        self.trunk = self.network.trunk
        self.embedder = self.network.embedder
        self.takes_vectors = recipe.model.takes_vectors
        self.memory_format = self._choose_memory_format()
        self.frozen = recipe.model.freeze == "trunk"  # then features are computed once, or given as vectors
        self.cut: TrunkCut | None = None  # of the stage that trains, where it trains from cached activations
        self._features: dict[tuple[TrunkCut | None, str, int], Features] = {}  # by cut, split and view
        self._caches: dict[tuple[TrunkCut | None, bool], FeatureCache] = {}  # of plain (False) or augmented images
        self._tell = tell

    def _load_data(self, root: Path | None, tell: Callable[[str], None]) -> None:
        """Build the data set and its splits; rank 0 goes first, since it may download the data."""
        with rank_0_first():
            splits = build_dataset(self.recipe.data, root)
            self.parents = splits.parents
            self.note = splits.note
            self._check_protocols()
            self.splits: dict[str, LabeledImages] = {"train": splits.train, **splits.tested()}
            if splits.validation is not None:
                self._take_validation(splits.validation)
            augmented = self._prepare_splits(splits, tell)
            self.listing = {name: listing_of(images) for name, images in self.splits.items()}  # in all checkpoints
        self._divide_training_images(self.splits.pop("train"))

        self.queries = "query" if "query" in self.splits else "test"
        """The split whose images are searched for in a test."""
        if "nearest-class-mean" in self.recipe.evaluation.protocols:
            self._check_class_means()
        self.training_images = self.splits["train"].with_transform(augmented)
        relation = build_relation(self.recipe.data, self.training_images.class_names)
        if relation is None:
            self.relation = None
        else:
            self.relation = relation.to(self.device)

    def _prepare_splits(self, splits: DataSplits, tell: Callable[[str], None]) -> Transform | None:
        """Give the images of all splits their transform; return that of training images. Vectors have none."""
        self._preprocessing: Preprocessing | VectorInput
        if self.recipe.model.takes_vectors:
            self._preprocessing = vector_input_of(self.recipe, splits)
            return None
        self._preprocessing, cuts = preprocessing_of(self.recipe, splits)
        augment = augmentation_of(self.recipe.data, self._preprocessing)
        augmented, plain = self._preprocessing.transforms(cuts, **augment)
        for name, images in self.splits.items():
            steps = augmented if name == "train" else plain
            self.splits[name] = self._prepared(name, images, steps, tell).with_transform(plain)
        return augmented

    def _take_validation(self, images: LabeledImages) -> None:
        """Keep the validation images of the data set, if the recipe chooses the epoch by them; else say so."""
        if self.recipe.evaluation.select_on == "split":
            self.splits["validation"] = images
            return
        unused = f"{len(images)} of {self.recipe.data.name} are for validation, and not used"
        advice = "--set evaluation.select=map_at_r --set evaluation.select_on=split chooses the epoch by them"
        self.note = "; ".join(filter(None, [self.note, f"{unused}: {advice}"]))

    def _check_protocols(self) -> None:
        if "zero-shot" in self.recipe.evaluation.protocols and not self.parents:
            missing = f"'zero-shot' wants classes with parents, which {self.recipe.data.name} does not have here"
            raise ConfigError(f"evaluation.protocols: {missing}; omniglot has, and imagenet with a hierarchy")

    def _check_class_means(self) -> None:
        """Raise DataError unless tested images have others of their classes, whose means they are compared with."""
        labels = self.splits[self.queries].labels
        gallery = self.splits[self.gallery_of(self.queries)]
        if self.queries == "query":
            without_mean = np.setdiff1d(labels, gallery.labels)
        else:
            values, counts = np.unique(labels, return_counts=True)
            without_mean = values if counts.max() == 1 else values[:0]
        if len(without_mean):
            name = gallery.class_names[without_mean[0]]
            wanted = f"'nearest-class-mean' wants another image of {name} to test with, and there is none"
            raise DataError(f"evaluation.protocols: {wanted}; leave it out")

    def _prepared(self, name: str, images: LabeledImages, steps: Any, tell: Callable[[str], None]) -> LabeledImages:
        """Return the readable images of a split, as the recipe caches them; note those that are left out."""
        table = self.recipe.data
        skips = table.unreadable == "skip"
        kept, skipped = prepare(images, steps, table.cache, skips, table.workers, tell)
        if skipped:
            self.unreadable[name] = skipped
        return kept

    def _divide_training_images(self, train: LabeledImages) -> None:
        """Make the splits of training, validation, and tested training images."""
        evaluation = self.recipe.evaluation
        if evaluation.select_on == "split" and "validation" not in self.splits:
            raise ConfigError(
                f"evaluation.select_on: found 'split', and {self.recipe.data.name} has no validation images of its "
                "own; wanted validation = 0.2 and select_on = 'validation'"
            )
        if evaluation.validation:
            rest, held_out = hold_out_classes(
                train, evaluation.validation, self.seed, evaluation.held_out, evaluation.fold
            )
            self.splits["validation"] = held_out
            if not evaluation.validation_trains:
                train = rest
        self.splits["train"] = train
        self.tested_training: str | None = None  # the split of the training images that are tested
        if evaluation.training_images:
            self.tested_training = "train"
        if 0 < evaluation.training_images < len(train):
            if train.tuples is None:
                sample = some_of_each_class(train.labels, evaluation.training_images, self.seed)
                self.splits[SAMPLE] = train.subset(sample)
            else:
                self.splits[SAMPLE] = train.sample_of_tuples(evaluation.training_images, self.seed)
            self.tested_training = SAMPLE

    def _choose_memory_format(self) -> torch.memory_format:
        """Return the memory format of images; convert the trunk to the same."""
        wanted = self.recipe.engine.channels_last
        if isinstance(self._preprocessing, VectorInput):
            return torch.contiguous_format
        if wanted is None and self.device.type == "cpu":
            return use_channels_last(self.trunk, self._preprocessing.channels, self._preprocessing.image_size)
        if not wanted:
            return torch.contiguous_format
        self.trunk.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return torch.channels_last

    @property
    def listed(self) -> ListedTuples | None:
        """The listed pairs or triplets that train, in place of labels; None where images have labels."""
        return self.splits["train"].tuples

    @property
    def unit(self) -> str:
        """What a batch has, ``"images"``, ``"vectors"``, ``"pairs"`` or ``"triplets"``, for texts."""
        return self.noun if self.listed is None else self.listed.kind

    @property
    def noun(self) -> str:
        """What the data set has, ``"images"`` or ``"vectors"``, for texts."""
        return "vectors" if self.takes_vectors else "images"

    def network_json(self) -> dict[str, Any]:
        """Return the content of ``network.json``: preprocessing, length of features, and training classes."""
        classes = np.unique(self.training_images.labels).tolist() if self.listed is None else []
        names = self.training_images.class_names
        return {
            **self._preprocessing.model_dump(),
            "features": self.network.features,
            "classes": classes,
            "class_names": [names[label] for label in classes],
        }

    def check_listing(self, before: Mapping[str, Mapping[str, Any]]) -> None:
        """Raise DataError if the images differ from those of a checkpoint's run, by its ``listing``."""
        if before == self.listing:
            return
        changes = []
        for name in {**before, **self.listing}:
            old = before.get(name)
            new = self.listing.get(name)
            if old == new:
                continue
            old_text = _counted_listing(old)
            new_text = _counted_listing(new)
            if old_text == new_text:
                others = "vectors" if self.takes_vectors else "files"
                changes.append(f"{name} has other {others} or labels")
            else:
                changes.append(f"{name} had {old_text}, now {new_text}")
        raise DataError(
            f"{self.folder}: the {self.noun} are not those of this run: {'; '.join(changes)}; put them back, name "
            "their folder with --data, or type another --out to begin a new run"
        )

    def gallery_of(self, split: str) -> str:
        """Return the split that a split's images search: ``"gallery"`` for queries, else the split itself."""
        return "gallery" if split == "query" else split

    @property
    def _batch_size(self) -> int:
        """Images in a forward pass of a test: few on a CPU, where larger batches take memory and save no time."""
        most = self.recipe.evaluation.batch_size
        if self.device.type != "cpu":
            return most
        values = math.prod(self._preprocessing.input_shape)
        return min(most, max(_CPU_BATCH, _CPU_VALUES // values))

    def _forward_passes(self, split: str, pixels: bool = False) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Yield a split's batches as :func:`embed_batches`; without images where the features are kept.

        With ``pixels`` there are always images.
        """
        if self.frozen and pixels:
            passes = self._passes_of_images(split, nn.Identity(), nn.Identity())
            return with_features(passes, self.features(split), nn.Identity(), self.embedder)
        if self.frozen:
            passes = self._passes_of_labels(split, _FEATURES_BATCH)
            return with_features(passes, self.features(split), nn.Identity(), self.embedder)
        if self.cut is not None and split == "validation":
            passes = self._passes_of_labels(split, self._batch_size)
            return with_features(passes, self.activations(self.cut, split), self.cut.rest, self.embedder)
        return self._passes_of_images(split, self.trunk, self.embedder)

    def _passes_of_labels(self, split: str, batch_size: int) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Yield batches of a split without images, for what is computed from the cache."""
        labels = torch.as_tensor(self.images(split).labels, device=self.device)
        none = labels[:0]
        return ((none, none, none, part) for part in torch.split(labels, batch_size))

    def _passes_of_images(
        self, split: str, trunk: nn.Module, embedder: nn.Module
    ) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        images = self.images(split)
        return embed_batches(trunk, embedder, images, self.device, self._batch_size, self.recipe.data.workers)

    def features(self, split: str, view: int = 0) -> Features:
        """Return the frozen trunk's features of a split, computed once; views above 0 are of augmented images.

        Vectors are features already.
        """
        if self.takes_vectors:
            return Features.of_vectors(self.images(split).vectors)
        return self._cached(None, split, view)

    def activations(self, cut: TrunkCut, split: str, view: int = 0) -> Features:
        """Return the activations of a split before a cut, ``[N, *shape]``, as :meth:`features`."""
        return self._cached(cut, split, view)

    def _cached(self, cut: TrunkCut | None, split: str, view: int) -> Features:
        key = (cut, split, view)
        if key not in self._features:
            if view:
                images = self.training_images
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
            about: list[Any] = [self._preprocessing.model_dump(), augmentation]
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

    def batches(self, split: str, layer: Layer = "embedder") -> Iterator[tuple[Tensor, Tensor]]:
        """Yield :meth:`embeddings` and :meth:`labels` batch by batch, ``[B, D]`` and ``[B]``, to spare memory."""
        self.labels(split)  # DataError for data without labels
        return self._batches(split, layer)

    def _batches(self, split: str, layer: Layer) -> Iterator[tuple[Tensor, Tensor]]:
        if layer not in ("embedder", "trunk"):
            raise ValueError(f"layer must be 'embedder' or 'trunk', not {layer!r}")
        for _, features, embeddings, labels in self._forward_passes(split):
            yield (features if layer == "trunk" else embeddings).float(), labels

    def labels(self, split: str) -> Tensor:
        """Return the labels of a split, ``[N]``, int64, on the run's device; which may be clusters for ``"train"``."""
        if split == "train" and self.pseudo_labels is not None:
            return torch.as_tensor(self.pseudo_labels, device=self.device)
        return self.true_labels(split)

    def true_labels(self, split: str) -> Tensor:
        """Return the labels that the data have, which tests use; DataError for listed pairs or triplets."""
        if self.listed is not None:
            raise NoLabelsError(f"{self.recipe.data.name} lists {self.listed.kind}, whose {self.noun} have no labels")
        return torch.as_tensor(self.images(split).labels, dtype=torch.int64, device=self.device)

    def images(self, split: str) -> LabeledImages:
        """Return the images of a split, without augmentation; ValueError if the run has no such split."""
        if split not in self.splits:
            raise ValueError(f"no split {split!r}; splits: {', '.join(sorted(self.splits))}")
        return self.splits[split]

    def embedded(
        self, split: str, also: Callable[[Tensor], Tensor] | None = None, features: bool = False
    ) -> dict[str, Tensor]:
        """Compute a split's embeddings, which :meth:`embeddings` keeps, and ``also`` of its images, in one pass.

        With ``features``, those of the trunk too.
        """
        images = self.images(split)
        held: dict[str, Tensor] = {}
        start = 0
        for batch, features_of_batch, embeddings, _ in self._forward_passes(split, pixels=also is not None):
            parts = {"embeddings": embeddings}
            if features:
                parts["features"] = features_of_batch
            if also is not None:
                parts["also"] = also(batch)
            for name, part in parts.items():  # in place: joining batches at the end would hold everything twice
                if name not in held:
                    held[name] = part.new_empty(len(images), *part.shape[1:])
                held[name][start : start + len(part)] = part
            start += len(embeddings)
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


def listing_of(images: LabeledImages) -> dict[str, Any]:
    """Return the number of images and of classes, and a digest of labels, class names, boxes, groups and the data.

    The digest is of all vectors, and of the paths of image files, which are not read. Paths are relative to the deepest
    folder that has all of them, so that data may move.
    """
    digest = hashlib.sha256(json.dumps(images.class_names, default=str).encode())
    digest.update(images.labels.tobytes())
    if images.boxes is not None:
        digest.update(images.boxes.tobytes())
    if images.groups is not None:
        digest.update(json.dumps(images.groups.tolist()).encode())
    if images.ids is not None:
        digest.update(json.dumps(images.ids.tolist()).encode())
        digest.update(images.vectors.contiguous().numpy().data)
    listing: dict[str, Any] = {"images": len(images), "classes": len(np.unique(images.labels))}
    if images.tuples is not None:
        digest.update(images.tuples.rows.numpy().tobytes())
        if images.tuples.same is not None:
            digest.update(images.tuples.same.numpy().tobytes())
        listing["tuples"] = f"{len(images.tuples)} {images.tuples.kind}"
    paths = [os.fspath(path) for path in images.paths or ()]
    start = os.path.commonprefix(paths).rfind(os.sep) + 1  # noqa: RUF071 - cut at a folder here
    for path in paths:
        digest.update(os.fsencode(path[start:]) + b"\0")
    return listing | {"digest": digest.hexdigest()[:16]}


def _counted_listing(listing: Mapping[str, Any] | None) -> str:
    if listing is None:
        return "no images"
    images = counted(listing["images"], "image")
    if "tuples" in listing:
        return f"{images} in {listing['tuples']}"
    classes = "1 class" if listing["classes"] == 1 else f"{listing['classes']} classes"
    return f"{images} of {classes}"


def open_run(folder: Path, seed: int, device: str, root: Path | None = None) -> View:
    """Return the data and the trained network of a finished run.

    Raise DataError for data or a checkpoint that is missing, damaged or of another run. ``seed`` is that of the run,
    ``root`` the folder of the data.
    """
    recipe = load_recipe(str(folder / RECIPE))
    view = View(recipe, folder, seed, device, root)
    state = checkpoint.load(view.checkpoint("model"), view.device, view.identity)
    view.check_listing(state["listing"])
    view.trunk.load_state_dict(state["trunk"])
    view.embedder.load_state_dict(state["embedder"])
    return view
