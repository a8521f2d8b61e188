"""The split and the batches that fit images or vectors with labels."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from pml_ext.errors import DataError
from pml_ext_train.data import DataSplits, LabeledImages
from pml_ext_train.recipe import DataTable, Override, build_dataset, name_or_value, tables_of, wrong_setting

from .settings import Settings

MANY_CLASSES = 20  # classes from which on some are kept from training: fewer teach too little about others
FEW_ITEMS = 4  # images of a class that can be divided, two to train and two to test
MOST_PER_CLASS = 16  # in a batch


def dataset_options(overrides: Iterable[Override]) -> dict[str, Any]:
    """Arguments of the data set among the overrides of ``[data]``, such as ``split``, with its relation."""
    table = tables_of(overrides).get("data")
    if not isinstance(table, dict):  # of a text, recipes say what is wanted
        return {}
    known = DataTable.model_fields.keys() - {"relation"}
    return {name: value for name, value in table.items() if name not in known}


def sampler_of(overrides: Iterable[Override]) -> str:
    """The sampler that overrides choose, or an empty string."""
    return str(name_or_value("sampler", tables_of(overrides)) or "")


def takes_fitting_batches(sampler: Mapping[str, Any], chosen: str) -> bool:
    """Whether fitting batches are set: the recipe's ``[sampler]`` has m, and no other sampler is ``chosen``."""
    return "m" in sampler and chosen in ("", sampler.get("name"))


def splits_of(name: str, options: dict[str, Any], root: Path | None) -> DataSplits:
    """The splits of a data set with its options."""
    try:
        table = DataTable(name=name, **options)
    except ValidationError as error:
        raise wrong_setting(error).inside("data") from None
    return build_dataset(table, root)


def parts_of(splits: DataSplits) -> list[LabeledImages]:
    """The training images, and the tested splits."""
    return [splits.train, *splits.tested().values()]


def selection_on(splits: DataSplits) -> Settings:
    """Settings that choose the epoch on validation data; empty without any."""
    if splits.validation is None:
        return {}
    return {"evaluation.select": "map_at_r", "evaluation.select_on": "split"}


def items_per_class(parts: list[LabeledImages]) -> Any:
    """The number of items of each class, in all parts."""
    labels = np.concatenate([part.labels for part in parts])
    _, counts = np.unique(labels, return_counts=True)
    return counts


def shares_classes(parts: list[LabeledImages]) -> bool:
    """Whether tested classes train."""
    return not set(parts[0].labels.tolist()).isdisjoint(parts[-1].labels.tolist())


def fitting_split(place: Path, parts: list[LabeledImages]) -> str:
    """``"class"`` for many classes, or few items of each; else ``"image"``."""
    per_class = items_per_class(parts)
    classes = len(per_class)
    few_items = np.median(per_class) < FEW_ITEMS
    if few_items and classes < FEW_ITEMS:
        noun = noun_of(parts)
        raise DataError(
            f"{classes} classes, most with fewer than {FEW_ITEMS} {noun}; wanted two classes of {FEW_ITEMS} {noun}, or "
            f"{FEW_ITEMS} classes",
            source=str(place),
        )
    if few_items or classes >= MANY_CLASSES:
        return "class"
    return "image"


def describe_split(parts: list[LabeledImages], split_is_chosen: bool) -> str:
    """A line about the split, with the setting for the other one unless it was chosen."""
    if shares_classes(parts):
        tested = sum(len(part) for part in parts[1:])
        text = f"{len(parts[0]):,} {noun_of(parts)} to train, {tested:,} others of the same classes to test"
        other = "class"
    else:
        trained = len(items_per_class(parts[:1]))
        tested = len(items_per_class(parts)) - trained
        text = f"{trained} classes to train, {tested} others, never trained on, to test"
        other = "image"
    if split_is_chosen:
        return text
    return f"{text}; otherwise: --set data.split={other}"


def fitting_batch(classes: int, per_class: float, size: int) -> tuple[int, int]:
    """Classes in a batch of at most ``size``, and images of each.

    ``per_class`` is the median number of images of a class. A batch has at most ``size / 4`` classes.
    """
    in_batch = min(classes, size // 4)
    images = int(max(2, min(size // in_batch, MOST_PER_CLASS, per_class)))
    return in_batch, images


def range_of(counts: Any) -> str:
    """The smallest and the largest number as text."""
    smallest = counts.min()
    largest = counts.max()
    if smallest < largest:
        return f"{smallest} to {largest}"
    return str(smallest)


def noun_of(parts: list[LabeledImages]) -> str:
    """``"images"`` or ``"vectors"``."""
    return "images" if parts[0].vector_size is None else "vectors"
