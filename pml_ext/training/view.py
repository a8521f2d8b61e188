"""A run's data and network, as components may use them: splits, labels, and embeddings that are computed once."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..data import LabeledImages, hold_out_classes, prepare
from ..distributed import from_rank_0, num_processes, rank, synchronize_batch_norm
from ..errors import ConfigError, DataError, counted
from ..evaluation import some_of_each_class
from ..recipe import Recipe, build_dataset, build_network, build_relation, load_recipe, preprocessing_of
from ..registry.hooks import RunView
from . import checkpoint
from .batches import embed_batches
from .features import FeatureCache, Features, with_features
from .folder import RECIPE

SAMPLE = "train_sample"  # the split of the training images that are tested, if not all are tested
_FEATURES_BATCH = 4096  # features in a forward pass of the embedder alone
_CPU_BATCH, _CPU_VALUES = 16, 10_000_000  # images, and values of their pixels, in a forward pass of a test on a CPU
T = TypeVar("T")
Layer = Literal["embedder", "trunk"]


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
        self.recipe, self.folder, self.seed = recipe, folder, seed
        self.device = torch.device(device)
        self.rank, self.processes = rank(), num_processes()
        self.epoch = 0
        tables = recipe.as_dict()
        del tables["schedule"]["epochs"], tables["track"]  # a run may get more epochs, and other trackers
        named = json.dumps([tables, seed], sort_keys=True, default=str).encode()
        self.identity = hashlib.sha256(named).hexdigest()[:16]  # in all checkpoints of the run
        self._kept: dict[Any, Any] = {}  # results computed with the network's current weights
        checkpoint.seed_all(seed)
        self.unreadable: dict[str, dict[str, str]] = {}  # by split: paths that could not be read, and why
        self.pseudo_labels: NDArray[np.int64] | None = None  # of the training images, where clusters are their labels
        self._load_data(root, tell)
        self.network = build_network(recipe.model, self._preprocessing)
        if self.processes > 1:
            self.network.trunk = synchronize_batch_norm(self.network.trunk, self.device)
        self.network.to(self.device)
        self.trunk, self.embedder = self.network.trunk, self.network.embedder
        self.frozen = recipe.model.freeze == "trunk"  # then features are computed once
        self._features: dict[tuple[str, int], Features] = {}
        self._caches: dict[bool, FeatureCache] = {}  # of plain (False) or augmented images
        self._tell = tell

    def _load_data(self, root: Path | None, tell: Callable[[str], None]) -> None:
        table, evaluation = self.recipe.data, self.recipe.evaluation
        if self.rank > 0:  # rank 0 goes first, since it may download the data
            from_rank_0(None)
        splits = build_dataset(table, root)
        self.parents, self.note = splits.parents, splits.note
        if "zero-shot" in evaluation.protocols and not self.parents:
            lacks = f"'zero-shot' wants classes with parents, which {table.name} does not have here"
            raise ConfigError(f"evaluation.protocols: {lacks}; omniglot has, and imagenet with a hierarchy")
        self._preprocessing, cuts = preprocessing_of(self.recipe, splits)
        augmented, plain = self._preprocessing.transforms(cuts, **table.augment)

        self.splits: dict[str, LabeledImages] = {}
        for name, images in {"train": splits.train, **splits.tested()}.items():
            steps, skips = augmented if name == "train" else plain, table.unreadable == "skip"
            kept, skipped = prepare(images, steps, table.cache, skips, table.workers, tell)
            self.splits[name] = kept.with_transform(plain)
            self.unreadable |= {name: skipped} if skipped else {}
        self.listing = {name: listing_of(images) for name, images in self.splits.items()}  # in all checkpoints
        train = self.splits.pop("train")
        if self.rank == 0:
            from_rank_0(None)
        if evaluation.validation:
            which = evaluation.validation, self.seed, evaluation.held_out, evaluation.fold
            rest, self.splits["validation"] = hold_out_classes(train, *which)
            train = train if evaluation.validation_trains else rest
        self.splits["train"] = train
        if 0 < evaluation.training_images < len(train):
            sample = some_of_each_class(train.labels, evaluation.training_images, self.seed)
            self.splits[SAMPLE] = self.splits["train"].subset(sample)
        # The split whose images are searched for in a test, and that of the training images that are tested.
        self.queries = "query" if "query" in self.splits else "test"
        tested_training = SAMPLE if SAMPLE in self.splits else "train"
        self.tested_training = tested_training if evaluation.training_images else None
        self.training_images = train.with_transform(augmented)
        relation = build_relation(table, train.class_names)
        self.relation = None if relation is None else relation.to(self.device)

    def network_json(self) -> dict[str, Any]:
        """Return the content of ``network.json``: preprocessing, length of features, and training classes."""
        classes, names = np.unique(self.training_images.labels).tolist(), self.training_images.class_names
        named = {"classes": classes, "class_names": [names[label] for label in classes]}
        return self._preprocessing.model_dump() | {"features": self.network.features} | named

    def check_listing(self, before: Mapping[str, Mapping[str, Any]] | None) -> None:
        """Raise DataError if the images differ from those of a checkpoint's run, by its ``listing``.

        Checkpoints of earlier versions have none, and are taken.
        """
        if before is None or before == self.listing:
            return
        changes = []
        for name in {**before, **self.listing}:
            old, new = before.get(name), self.listing.get(name)
            if old == new:
                continue
            texts = [_counted_listing(each) for each in (old, new)]
            same = texts[0] == texts[1]
            changes.append(f"{name} has other files or labels" if same else f"{name} had {texts[0]}, now {texts[1]}")
        raise DataError(
            f"{self.folder}: the images are not those of this run: {'; '.join(changes)}; put them back, name their "
            "folder with --data, or type another --out to begin a new run"
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
        values = self._preprocessing.channels * self._preprocessing.image_size**2
        return min(most, max(_CPU_BATCH, _CPU_VALUES // values))

    def _forward_passes(self, split: str, pixels: bool = False) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Yield a split's batches as :func:`embed_batches`; without images where the features are kept.

        With ``pixels`` there are always images.
        """
        trunk, embedder = (nn.Identity(), nn.Identity()) if self.frozen else (self.trunk, self.embedder)
        if not self.frozen or pixels:
            given = self.images(split), self.device, self._batch_size, self.recipe.data.workers
            passing = embed_batches(trunk, embedder, *given)
        else:
            labels = self.true_labels(split)
            passing = ((labels[:0], labels[:0], labels[:0], part) for part in torch.split(labels, _FEATURES_BATCH))
        return with_features(passing, self.features(split), self.embedder) if self.frozen else passing

    def features(self, split: str, view: int = 0) -> Features:
        """Return the frozen trunk's features of a split, computed once; views above 0 are of augmented images."""
        if (split, view) not in self._features:
            images = self.training_images if view else self.images(split)
            if bool(view) not in self._caches:
                about = [self._preprocessing.model_dump(), repr(images.transform) if view else ""]
                arguments = self.trunk, self.network.features, about, self.device, self._batch_size
                self._caches[bool(view)] = FeatureCache(*arguments, self.recipe.data.workers, self._tell)
            self._features[split, view] = self._caches[bool(view)].of(images, view)
        return self._features[split, view]

    def embeddings(self, split: str, layer: Layer = "embedder") -> Tensor:
        """Return the network's output for a split, not normalized, ``[N, D]`` float32; the embedder's is kept."""
        if layer == "embedder":
            return self.once(("embeddings", split), lambda: self.embedded(split)["embeddings"])
        return torch.cat([features for features, _ in self.batches(split, layer)])

    def batches(self, split: str, layer: Layer = "embedder") -> Iterator[tuple[Tensor, Tensor]]:
        """Yield :meth:`embeddings` and :meth:`labels` batch by batch, ``[B, D]`` and ``[B]``, to spare memory."""
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
        """Return the labels that the data have, which tests use."""
        return torch.as_tensor(self.images(split).labels, dtype=torch.int64, device=self.device)

    def images(self, split: str) -> LabeledImages:
        """Return the images of a split, without augmentation; ValueError if the run has no such split."""
        if split not in self.splits:
            raise ValueError(f"no split {split!r}; splits: {', '.join(sorted(self.splits))}")
        return self.splits[split]

    def embedded(self, split: str, also: Callable[[Tensor], Tensor] | None = None) -> dict[str, Tensor]:
        """Compute a split's embeddings, which :meth:`embeddings` keeps, and ``also`` of its images, in one pass."""
        images, held, start = self.images(split), dict[str, Tensor](), 0
        for batch, _, embeddings, _ in self._forward_passes(split, pixels=also is not None):
            parts = {"embeddings": embeddings} | ({"also": also(batch)} if also is not None else {})
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

    def checkpoint(self, name: str) -> Path:
        """Return the path of ``"last"``, ``"within"``, ``"best"`` or ``"model"``."""
        return self.folder / "checkpoints" / f"{name}.pt"

    def call(self, part: Any, method: str, *more: Any) -> Any:
        """Call a component's method with the run and more arguments; return None if it has no such method."""
        view: RunView = self  # all that a component may use
        function = getattr(part, method, None)
        return function(view, *more) if callable(function) else None


def listing_of(images: LabeledImages) -> dict[str, Any]:
    """Return the number of images and of classes, and a digest of relative paths, labels, class names and boxes.

    The files are not read. Paths are relative to the deepest folder that has all of them, so that data may move.
    """
    digest = hashlib.sha256(json.dumps(images.class_names, default=str).encode())
    digest.update(images.labels.tobytes())
    if images.boxes is not None:
        digest.update(images.boxes.tobytes())
    paths = [os.fspath(path) for path in images.paths or ()]
    start = os.path.commonprefix(paths).rfind(os.sep) + 1  # noqa: RUF071 - cut at a folder here
    for path in paths:
        digest.update(os.fsencode(path[start:]) + b"\0")
    classes = len(np.unique(images.labels))
    return {"images": len(images), "classes": classes, "digest": digest.hexdigest()[:16]}


def _counted_listing(listing: Mapping[str, Any] | None) -> str:
    if listing is None:
        return "no images"
    classes = listing["classes"]
    return f"{counted(listing['images'], 'image')} of {classes} {'class' if classes == 1 else 'classes'}"


def open_run(folder: Path, seed: int, device: str, root: Path | None = None) -> View:
    """Return the data and the trained network of a finished run.

    Raise DataError for data or a checkpoint that is missing, damaged or of another run. ``seed`` is that of the run,
    ``root`` the folder of the data.
    """
    recipe = load_recipe(str(folder / RECIPE))
    view = View(recipe, folder, seed, device, root)
    state = checkpoint.load(view.checkpoint("model"), view.device, view.identity)
    view.check_listing(state.get("listing"))
    view.trunk.load_state_dict(state["trunk"])
    view.embedder.load_state_dict(state["embedder"])
    return view
