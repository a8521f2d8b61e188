"""Features of images, computed once and kept for whitening and the collection."""

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from pml_ext.errors import DataError, counted, first_of
from pml_ext_train.data import LabeledImages, Steps, prepare
from pml_ext_train.networks import Preprocessing, use_channels_last
from pml_ext_train.recipe import Recipe, build_network
from pml_ext_train.training import FeatureCache, Features, check

BATCH = 64  # images in a forward pass
PART = 256  # images that are read, and whose features are kept, together
NAMED = 5  # of the files that cannot be read, in a note
STOPPED = "after the features of some images, which are kept"


class PassProgress(NamedTuple):
    """Progress of a pass over images."""

    done: int
    images: int
    rate: float  # images per second
    seconds_left: float


class OnePass(NamedTuple):
    """The images with kept features, and what was left out."""

    readable: LabeledImages
    features: Features  # of the readable images
    unreadable: dict[str, str]  # why, by path

    @property
    def note(self) -> str:
        """A warning that names unreadable files, or an empty string."""
        if not self.unreadable:
            return ""
        reasons = first_of(list(self.unreadable.values()), NAMED)
        return f"left out {counted(len(self.unreadable), 'image')} that cannot be read: {reasons}"


def keep_features(
    recipe: Recipe,
    images: LabeledImages,
    preprocessing: Preprocessing,
    device: str,
    tell: Callable[[str], None],
    progress: Callable[[PassProgress], None],
) -> OnePass:
    """Compute the missing features of images under a recipe's frozen trunk, and keep them.

    Every file is read once. After a kill, the next call continues. DataError if no image can be read.
    """
    cache, steps = _cache_of(recipe, preprocessing, torch.device(device))
    assert images.paths is not None
    known = cache.of_files(images.paths)
    missing = [number for number in range(len(images)) if number not in known]
    if missing:
        tell(f"computing features of {len(missing):,} images by {recipe.model.trunk.name}")

    unreadable: dict[str, str] = {}
    begun = time.perf_counter()
    for start in range(0, len(missing), PART):
        check(STOPPED)
        part = images.subset(missing[start : start + PART])
        readable, reasons = _read(part, steps)
        unreadable |= reasons
        if readable is not None:
            cache.of(readable.with_transform(steps))
        done = start + len(part)
        rate = done / (time.perf_counter() - begun)
        progress(PassProgress(done, len(missing), rate, (len(missing) - done) / rate))

    if len(unreadable) == len(images):
        raise DataError(f"none of {len(images)} images can be read; the first: {next(iter(unreadable.values()))}")
    kept = images.subset(np.array([str(path) not in unreadable for path in images.paths]))
    return OnePass(kept, cache.of(kept.with_transform(steps)), unreadable)


def _cache_of(recipe: Recipe, preprocessing: Preprocessing, device: torch.device) -> tuple[FeatureCache, Steps]:
    """The cache of a recipe's features, shared with runs and collections, and the steps to the trunk's input."""
    _, steps = preprocessing.transforms()
    network = build_network(recipe.model, preprocessing).to(device).eval()
    if device.type == "cpu":
        use_channels_last(network.trunk, preprocessing.channels, preprocessing.image_size)
    about = [preprocessing.model_dump(), ""]  # as runs and collections describe plain images
    return FeatureCache(network.trunk, network.features, about, device, BATCH), steps


def _read(images: LabeledImages, steps: Steps) -> tuple[LabeledImages | None, dict[str, str]]:
    """Readable images in memory, None without any, and why others cannot be read."""
    try:
        return prepare(images, steps, cache="memory", skip_unreadable=True)
    except DataError:  # of all
        reasons: dict[str, str] = {}
        for number, path in enumerate(images.paths or ()):
            try:
                images.image(number, steps.smallest)
            except DataError as error:
                reasons[str(path)] = str(error)
        return None, reasons
