"""The split, batches and head that fit a file of vectors, and what can be delivered for it."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from pml_ext.errors import DataError
from pml_ext_train.data import LabeledImages, VectorFile, read_vectors
from pml_ext_train.recipe import VECTORS, Override, read_tables

from .candidates import NOTHING_TO_LEARN, Candidate, Choice
from .closed_forms import CLOSED_FORMS
from .own_data import (
    dataset_options,
    describe_split,
    fitting_batch,
    fitting_split,
    items_per_class,
    parts_of,
    range_of,
    sampler_of,
    selection_on,
    shares_classes,
    splits_of,
    takes_fitting_batches,
)
from .settings import Settings

RECIPE = "fit/vectors"
BATCH = 128  # vectors, at most
LARGEST_EMBEDDING = 128
FEWEST_ITERATIONS = 20  # of an epoch
MOST_ITERATIONS = 500
TRIAL_ITERATIONS = 40_000  # of all trials of a head, which take a minute


@dataclass(frozen=True)
class OwnVectors:
    """A file of vectors, and the settings that fit it."""

    name: str  # of the data set
    data: Settings  # the data set, its split, and the validation vectors that choose the epoch
    head: Settings
    batches: Settings
    description: list[str]  # the vectors and their split, a line each
    of_training: list[str]  # the head and its batches, a line each
    sampler: str  # that the options name; "" for the recipe's
    size: int  # of a vector
    shares_classes: bool  # whether the tested classes are those that train

    @property
    def settings(self) -> Settings:
        """The recipe's settings, with fitting batches unless the options choose another sampler."""
        settings = self.data | self.head
        if takes_fitting_batches(read_tables(RECIPE)["sampler"], self.sampler):
            settings |= self.batches
        return settings

    @property
    def as_they_are(self) -> Choice:
        """The vectors without a head, where a head has nothing to learn."""
        settings = self.settings | {
            "model.embedder": "none",
            "model.embedding_size": self.size,
            "description": f"Your own vectors, unwhitened: {NOTHING_TO_LEARN}",
        }
        return Choice("vectors, unwhitened", RECIPE, settings)


def describe_vectors(place: str | Path, overrides: Iterable[Override] = (), root: Path | None = None) -> OwnVectors:
    """Look at a file of vectors, following the overrides of ``data``; DataError for too few."""
    path = _without_kind(place)
    overrides = list(overrides)
    name = f"{VECTORS}{path}"
    file = read_vectors((root or Path()) / path.expanduser())
    if file.labels is None:
        raise DataError(f"{file.path}: no labels; training needs the key 'labels', [N], integers or texts")
    options = dataset_options(overrides)
    data: Settings = {"data.name": name}
    split_is_chosen = file.split is not None or "split" in options
    if not split_is_chosen:
        whole = LabeledImages(torch.from_numpy(file.embeddings), file.labels, file.class_names)
        split = fitting_split(file.path, [whole])
        options["split"] = split
        data["data.split"] = split
    splits = splits_of(name, options, root)
    parts = parts_of(splits)
    data |= selection_on(splits)

    trained = items_per_class(parts[:1])
    in_batch, per_class = fitting_batch(len(trained), float(np.median(trained)), BATCH)
    batch = in_batch * per_class
    iterations = min(max(FEWEST_ITERATIONS, len(parts[0]) // batch), MOST_ITERATIONS)
    batches = {"sampler.m": per_class, "sampler.batch_size": batch, "sampler.iterations": iterations}

    vectors = file.embeddings.shape[1]
    size = min(vectors, LARGEST_EMBEDDING)
    shares = shares_classes(parts)
    embedder = "mlp" if shares else "linear"
    counts = items_per_class(parts)
    description = [
        f"{file.path}: {len(file.embeddings):,} vectors of {vectors} numbers, {len(counts)} classes of "
        f"{range_of(counts)}",
        _split_of_file(file) if file.split is not None else describe_split(parts, split_is_chosen),
    ]
    of_training = [
        f"{_HEADS[embedder]}, {vectors} to {size} numbers; otherwise: --set model.embedder={_OTHER[embedder]}",
        f"batches of {in_batch} classes x {per_class} vectors, {iterations} in an epoch; longer training: "
        "--set schedule.epochs=40",
    ]
    return OwnVectors(
        name=name,
        data=data,
        head={"model.embedder": embedder, "model.embedding_size": size},
        batches=batches,
        description=description,
        of_training=of_training,
        sampler=sampler_of(overrides),
        size=vectors,
        shares_classes=shares,
    )


_HEADS = {
    "linear": "a linear head, since the tested classes are new",
    "mlp": "a head with a hidden layer of 512, since the tested classes train",
}
_OTHER = {"linear": "mlp", "mlp": "linear"}


def _without_kind(place: str | Path) -> Path:
    if str(place).startswith(VECTORS) and not Path(place).exists():
        return Path(str(place).removeprefix(VECTORS))
    return Path(place)


def _split_of_file(file: VectorFile) -> str:
    assert file.split is not None
    assert file.labels is not None
    texts = []
    for part in ("train", "validation", "test"):
        rows = file.split == part
        if rows.any():
            texts.append(f"{part} {int(rows.sum()):,} of {len(np.unique(file.labels[rows]))} classes")
    return f"the file's split: {', '.join(texts)}"


def closed_forms(vectors: OwnVectors) -> list[Candidate]:
    """The vectors, unwhitened and whitened, the simplest first."""
    found = []
    for form in CLOSED_FORMS:
        title = f"vectors{form.title or ', unwhitened'}"
        settings = vectors.settings | form.settings(vectors.size)
        found.append(Candidate(title, RECIPE, settings, f"Your own {title}", form))
    return found


def trained(vectors: OwnVectors) -> list[Candidate]:
    """A head, if the tested classes train; for new classes, whitening is better."""
    if not vectors.shares_classes:
        return []
    return [Candidate("trained head", RECIPE, vectors.settings, most_iterations=TRIAL_ITERATIONS)]
