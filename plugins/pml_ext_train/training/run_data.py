"""The data of a run: splits with transforms, left-out files, and a digest for checkpoints."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pml_ext.distributed import rank_0_first
from pml_ext.errors import ConfigError, DataError, counted
from pml_ext.pairwise import ListedTuples

from ..data import (
    DataSplits,
    LabeledImages,
    Pipeline,
    Transform,
    classes_of_two,
    hold_out_classes,
    prepare,
)
from ..networks.network import Preprocessing, VectorInput
from ..recipe import Recipe, augmentation_of, build_dataset, preprocessing_of, vector_input_of

PER_CLASS = 20  # images per class that suffice for retrieval
SAMPLE = "train_sample"  # the split of the training images that are tested, if not all are tested
Tell = Callable[[str], None]
Listing = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class RunData:
    """The images or vectors of a run, returned by :func:`load_run_data`."""

    name: str  # of the data set
    splits: dict[str, LabeledImages]  # without augmentation
    training_images: LabeledImages  # the split "train", augmented
    preprocessing: Preprocessing | VectorInput
    tested_training: str | None  # the split of the training images that are tested
    listing: Listing  # numbers and digests by split, in all checkpoints
    unreadable: dict[str, dict[str, str]]  # by split: paths that could not be read, and why
    parents: Mapping[str, Sequence[str]] | None  # of each class and each ancestor, by name
    note: str  # a warning about the data
    labeled: bool = True  # whether there are labels, and splits to test

    @property
    def queries(self) -> str:
        """The split whose images a test searches for, ``"query"`` or ``"test"``."""
        return "query" if "query" in self.splits else "test"

    @property
    def has_vectors(self) -> bool:
        """Whether the data are vectors."""
        return isinstance(self.preprocessing, VectorInput)

    @property
    def listed(self) -> ListedTuples | None:
        """The listed training pairs or triplets, or None."""
        return self.splits["train"].tuples

    @property
    def noun(self) -> str:
        """``"images"`` or ``"vectors"``, for texts."""
        return "vectors" if self.has_vectors else "images"

    @property
    def unit(self) -> str:
        """What a batch holds: ``"images"``, ``"vectors"``, ``"pairs"`` or ``"triplets"``."""
        return self.noun if self.listed is None else self.listed.kind

    def images(self, split: str) -> LabeledImages:
        """A split's images without augmentation; ValueError for an unknown split."""
        if split not in self.splits:
            raise ValueError(f"no split {split!r}; splits: {', '.join(sorted(self.splits))}")
        return self.splits[split]

    def gallery_of(self, split: str) -> str:
        """The split that a split's images search: ``"gallery"`` for queries, else itself."""
        return "gallery" if split == "query" else split

    def network_json(self, features: int) -> dict[str, Any]:
        """Content of ``network.json``: preprocessing, feature size, training classes."""
        has_classes = self.labeled and self.listed is None
        classes = np.unique(self.training_images.labels).tolist() if has_classes else []
        names = self.training_images.class_names
        return {
            **self.preprocessing.model_dump(),
            "features": features,
            "classes": classes,
            "class_names": [names[label] for label in classes],
        }

    def check_listing(self, folder: Path, before: Listing) -> None:
        """Raise DataError if the images differ from the ``listing`` of a checkpoint."""
        changes = []
        for name in {**before, **self.listing}:
            old = _counted_listing(before.get(name))
            new = _counted_listing(self.listing.get(name))
            if old != new:
                changes.append(f"{name} had {old}, now {new}")
            elif before[name] != self.listing[name]:
                changes.append(f"{name} has other {'vectors' if self.has_vectors else 'files'} or labels")
        if changes:
            raise DataError(
                f"{folder}: the {self.noun} have changed since the run began: {'; '.join(changes)}. Restore "
                "them, give their folder with --data, or start a new run with another --out"
            )


def load_run_data(recipe: Recipe, seed: int, root: Path | None, tell: Tell, given: DataSplits | None = None) -> RunData:
    """Build the data set and splits of a recipe; rank 0 goes first, because it may download.

    ``root`` is the data folder. ``given`` splits replace the data set's.
    """
    with rank_0_first():
        if given is None:
            given = build_dataset(recipe.data, root)
        if "zero-shot" in recipe.evaluation.protocols and not given.parents:
            raise ConfigError(
                f"evaluation.protocols: 'zero-shot' needs classes with parents, which {recipe.data.name} "
                "does not have; omniglot has them, and imagenet with a hierarchy"
            )
        splits = {"train": given.train, **given.tested()}
        note = given.note
        if given.validation is not None:
            if recipe.evaluation.select_on == "split":
                splits["validation"] = given.validation
            else:
                unused = (
                    f"the {len(given.validation)} validation images of {recipe.data.name} are not used. To choose the "
                    "epoch by them, type --set evaluation.select=map_at_r --set evaluation.select_on=split"
                )
                note = "; ".join(filter(None, [note, unused]))
        preprocessing: Preprocessing | VectorInput
        unreadable: dict[str, dict[str, str]] = {}
        augmented = None
        if recipe.model.takes_vectors:
            preprocessing = vector_input_of(recipe, given)
        else:
            preprocessing, pipeline = preprocessing_of(recipe, given)
            augmented = _transform(recipe, splits, preprocessing, pipeline, unreadable, tell)
        listing = {name: listing_of(images) for name, images in splits.items()}
    tested_training = _divide_training_images(recipe, splits, seed)
    data = RunData(
        name=recipe.data.name,
        splits=splits,
        training_images=splits["train"].with_transform(augmented),
        preprocessing=preprocessing,
        tested_training=tested_training,
        listing=listing,
        unreadable=unreadable,
        parents=given.parents,
        note=note,
        labeled=given.labeled,
    )
    if "nearest-class-mean" in recipe.evaluation.protocols:
        _check_class_means(data)
    return data


def _transform(
    recipe: Recipe,
    splits: dict[str, LabeledImages],
    preprocessing: Preprocessing,
    pipeline: Pipeline,
    unreadable: dict[str, dict[str, str]],
    tell: Tell,
) -> Transform:
    """Set and cache the transform of all splits; return that of training images.

    Paths that could not be read are added to ``unreadable``.
    """
    table = recipe.data
    augmented, plain = preprocessing.transforms(pipeline, **augmentation_of(table, preprocessing))
    skips = table.unreadable == "skip"
    for name, images in splits.items():
        steps = augmented if name == "train" else plain
        readable, skipped = prepare(images, steps, table.cache, skips, table.workers, _naming(name, tell))
        splits[name] = readable.with_transform(plain)
        if skipped:
            unreadable[name] = skipped
    return augmented


def _naming(split: str, tell: Tell) -> Tell:
    return lambda text: tell(f"{split}: {text}")


def _divide_training_images(recipe: Recipe, splits: dict[str, LabeledImages], seed: int) -> str | None:
    """Make the training, validation and sample splits; name the tested training split."""
    train = splits.pop("train")  # then the tested splits stay in front
    evaluation = recipe.evaluation
    if evaluation.select_on == "split" and "validation" not in splits:
        raise ConfigError(
            f"evaluation.select_on: found 'split', but {recipe.data.name} has no validation images; set "
            "validation = 0.2 and select_on = 'validation'"
        )
    if evaluation.validation:
        rest, held_out = hold_out_classes(train, evaluation.validation, seed, evaluation.held_out, evaluation.fold)
        splits["validation"] = held_out
        if not evaluation.validation_trains:
            train = rest
    splits["train"] = train
    if not evaluation.training_images:
        return None
    if evaluation.training_images >= len(train):
        return "train"
    if train.tuples is None:
        splits[SAMPLE] = train.subset(some_of_each_class(train.labels, evaluation.training_images, seed))
    else:
        splits[SAMPLE] = train.sample_of_tuples(evaluation.training_images, seed)
    return SAMPLE


def some_of_each_class(labels: Any, most: int, seed: int = 0) -> NDArray[np.int64]:
    """Return ascending indices of a sample in which classes stay large enough for retrieval.

    Classes are added in random order with up to 20 images each, until there are ``most``. If 20 are too few, the limit
    is the smallest that suffices: 10 classes of 90 give 300 as 30 of each.
    """
    labels = np.asarray(labels)
    if most >= len(labels):
        return np.arange(len(labels))
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(labels))
    by_class = order[np.argsort(labels[order], kind="stable")]
    _, starts, class_of, counts = np.unique(
        labels[by_class], return_index=True, return_inverse=True, return_counts=True
    )
    place = np.arange(len(labels)) - starts[class_of]  # position of each image within its class
    rank = np.argsort(generator.permutation(len(counts)))  # random rank of each class

    per_class = PER_CLASS
    while np.minimum(counts, per_class).sum() < most:
        per_class += 1
    by_rank = np.argsort(rank[class_of], kind="stable")
    chosen = by_rank[place[by_rank] < per_class][:most]
    return np.sort(by_class[chosen])


def _check_class_means(data: RunData) -> None:
    """Raise DataError if a test image has no other image of its class."""
    labels = data.splits[data.queries].labels
    gallery = data.splits[data.gallery_of(data.queries)]
    without_mean = np.setdiff1d(labels, gallery.labels)
    if data.queries == "test" and classes_of_two(labels) == 0:
        without_mean = np.unique(labels)
    if len(without_mean):
        raise DataError(
            "evaluation.protocols: 'nearest-class-mean' needs another image of "
            f"{gallery.class_names[without_mean[0]]} to compare with; leave it out"
        )


def listing_of(images: LabeledImages) -> dict[str, Any]:
    """Numbers of images and classes, and a digest of labels, names, boxes, groups and vectors.

    Paths count relative to their common folder, so data may move; image files are not read.
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
