"""ImageNet, divided into classes to train with and classes to search for."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Literal

from ..errors import DataError
from .published import About, Archive, Count, Counts, Entry, assemble, place_of, read_lines
from .splits import DataSplits

ABOUT = About(
    name="imagenet",
    title="ImageNet, ILSVRC 2012",
    page="https://www.image-net.org/challenges/LSVRC/2012/",
    license="for non-commercial research, after registration",
    archives=(
        Archive("ILSVRC2012_img_train.tar", 147_897, "1d675b47d978889d74fa0da5fadfb00e"),
        Archive("ILSVRC2012_img_val.tar", 6_745, "29b22e2961454d5413ddabcf34fc5622"),
    ),
    layout="train/n01440764/*.JPEG and val/n01440764/*.JPEG, as torchvision.datasets.ImageNet unpacks them",
    counts={"train": Count(667_289, 500), "gallery": Count(638_878, 500), "query": Count(25_000, 500)},
    note="Classes in the order of their WordNet ids. split = 'pddm': 800 classes train, 200 are tested; "
    "for zero-shot learning hierarchy = 'wordnet.is_a.txt', the list of parents and children that ImageNet publishes.",
)
PDDM: Counts = {"train": Count(None, 800), "test": Count(None, 200)}


def imagenet(
    root: Path | None = None,
    image_size: int = 224,
    split: Literal["cbml", "pddm"] = "cbml",
    hierarchy: Path | None = None,
) -> DataSplits:
    """ImageNet 2012: the first 500 classes train; of the others, validation images are searched among training images.

    The classes are in the order of their WordNet ids; validation images of training classes train as well. With ``split
    = "pddm"`` 800 classes train and 200, by default the last, are tested, each image among all others.

    Args:
        root: the folder with ``train`` and ``val``; ``pml-ext data imagenet`` has the default.
        image_size: height and width of the network's input, in pixels.
        split: ``"cbml"`` or ``"pddm"``.
        hierarchy: for zero-shot learning, a file of WordNet ids, a parent and a child per line (``wordnet.is_a.txt``).
    """
    about = ABOUT if split == "cbml" else dataclasses.replace(ABOUT, counts=PDDM)
    place = place_of(about, root, "train", ["ILSVRC2012", "ILSVRC/Data/CLS-LOC"])
    place_of(about, place, "val")
    train, val = (sorted(path.name for path in (place / part).glob("n*")) for part in ("train", "val"))
    if train != val:
        first = min(set(train) ^ set(val))
        raise DataError(f"{place}: train and val differ in their folders, {first} first; both want one per WordNet id")
    tested = set(train[about.counts["train"].classes :])
    parts: dict[str, list[Entry]] = {part: [] for part in about.counts}
    of_training, of_validation = ("gallery", "query") if "query" in about.counts else ("test", "test")
    for folder, part in (("train", of_training), ("val", of_validation)):
        for name in train:
            files = sorted(file.name for file in os.scandir(place / folder / name))
            photographs = [f"{folder}/{name}/{file}" for file in files if file.upper().endswith((".JPEG", ".JPG"))]
            parts[part if name in tested else "train"] += [Entry(path, name) for path in photographs]
    splits = assemble(about, place / "train", place, parts, image_size, train)
    return dataclasses.replace(splits, parents=parents_in(hierarchy) if hierarchy is not None else None)


def parents_in(path: Path) -> dict[str, list[str]]:
    """Return the parents of every WordNet id in a list of parents and children."""
    parents: dict[str, list[str]] = {}
    for parent, child in read_lines(path, 2):
        parents.setdefault(child, []).append(parent)
    return parents
