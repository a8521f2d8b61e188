"""Omniglot, characters of many alphabets, and its two small background sets."""

import io
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from pml_ext.errors import ConfigError, DataError

from .images import LabeledImages
from .published import Archive, Count, DatasetInfo, check_count, find_root, get_archives
from .reading import open_image
from .splits import DataSplits

BACKGROUND = "images_background.zip"
EVALUATION = "images_evaluation.zip"
WHOLE = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/"
ABOUT = DatasetInfo(
    name="omniglot",
    title="Omniglot",
    page="https://github.com/brendenlake/omniglot",
    license="MIT",
    archives=(
        Archive(BACKGROUND, 10, "68d2efa1b9178cc56df9314c21c6e718", WHOLE + BACKGROUND, unpack=False),
        Archive(EVALUATION, 7, "6b91aef0f799c5bb55b94e3f2daec811", WHOLE + EVALUATION, unpack=False),
    ),
    layout=f"{BACKGROUND} and {EVALUATION}, not unpacked",
    counts={"train": Count(19_280, 964), "test": Count(13_180, 659)},
)
TRAIN = "images_background_small1.zip"
TEST = "images_background_small2.zip"
URL = "https://raw.githubusercontent.com/brendenlake/omniglot/057f034b/python/"
SMALL = DatasetInfo(
    name="omniglot-small",
    title="Omniglot's two small background sets",
    page=ABOUT.page,
    license=ABOUT.license,
    archives=(
        Archive(TRAIN, 1, "f38eb80f801274ac2b4dff5b24289016bfaba4a7d5bb50deebf27104ad6cb8a4", URL + TRAIN, False),
        Archive(TEST, 2, "3ccaa407515a8778e5d0861875af38b17e418f301ad5bb3b5a6b65d901a41c7f", URL + TEST, False),
    ),
    layout=f"{TRAIN} and {TEST}, not unpacked",
    counts={"train": Count(2_720, 136), "test": Count(2_120, 106)},
    note="Downloaded on first use.",
)

Split = Literal["alphabets", "characters"]
ONE_IN = 5  # with split = "characters", every fifth character of an alphabet is a test class


def omniglot(root: Path | None = None, image_size: int = 28, split: Split = "alphabets") -> DataSplits:
    """Omniglot, 20 drawings of each of 1,623 characters.

    964 characters of 30 alphabets to train, 659 of 20 other alphabets to test. Ink is bright on dark. Drawings are kept
    in memory. Alphabets are the parents of their characters.

    Args:
        root: a folder with ``images_background.zip`` and ``images_evaluation.zip``.
        image_size: height and width of the resized drawings, from 8 to 105 pixels.
        split: ``"alphabets"``, or ``"characters"`` to test every fifth character of each alphabet.
    """
    return _splits(ABOUT, find_root(ABOUT, root, BACKGROUND, ["omniglot-py"]), image_size, split)


def omniglot_small(root: Path | None = None, image_size: int = 28, split: Split = "alphabets") -> DataSplits:
    """The small background sets of Omniglot, 20 drawings of each of 242 characters; 2.9 MB.

    136 characters of five alphabets to train, 106 of three others to test. ``images_background_small1.zip`` and
    ``images_background_small2.zip`` are downloaded on first use unless ``root`` is given. Otherwise as
    :func:`omniglot`.
    """
    if root is None:
        get_archives(SMALL, SMALL.place)
    return _splits(SMALL, find_root(SMALL, root, TRAIN), image_size, split)


def _splits(about: DatasetInfo, place: Path, image_size: int, split: Split) -> DataSplits:
    if not 8 <= image_size <= 105:
        raise ConfigError(f"image_size of {about.name} must be from 8 to 105 pixels, not {image_size}")
    first, second = (find_root(about, place, archive.name) / archive.name for archive in about.archives)
    train = _read(first, image_size)
    test = _read(second, image_size, without=set(map(_alphabet, train.class_names)))
    mend = f"type: pml-ext data {about.name} --download"
    for part, path, images in (("train", first, train), ("test", second, test)):
        check_count(about, part, len(images), len(images.class_names), path, mend)
    names = [*train.class_names, *test.class_names]
    if split == "characters":
        train, test = _split_by_character(train, test)
    parents = {name: [_alphabet(name)] for name in names}
    return DataSplits(train, test, image_size=image_size, channels=1, parents=parents)


def _split_by_character(first: LabeledImages, second: LabeledImages) -> tuple[LabeledImages, LabeledImages]:
    names = [*first.class_names, *second.class_names]
    pixels = torch.cat([torch.as_tensor(first.images), torch.as_tensor(second.images)])
    labels = np.concatenate([first.labels, second.labels + len(first.class_names)])
    everything = LabeledImages(pixels, labels, names, channels=1)

    is_tested = np.zeros(len(names), dtype=bool)
    for alphabet in set(map(_alphabet, names)):
        characters = [label for label, name in enumerate(names) if _alphabet(name) == alphabet]
        is_tested[characters[ONE_IN - 1 :: ONE_IN]] = True
    return everything.subset(~is_tested[labels]), everything.subset(is_tested[labels])


def _alphabet(character: str) -> str:
    return character.partition("/")[0]


def _read(path: Path, image_size: int, without: Collection[str] = ()) -> LabeledImages:
    """Read a zip of ``SET/ALPHABET/CHARACTER/FILE.png``, except the alphabets ``without``."""
    from PIL import Image

    drawings: list[Any] = []
    labels: list[int] = []
    names: dict[str, int] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in sorted(archive.namelist()):
                parts = entry.split("/")
                if len(parts) != 4 or not entry.endswith(".png") or parts[1] in without:
                    continue
                with open_image(io.BytesIO(archive.read(entry)), f"{path}, {entry}") as drawing:
                    small = drawing.convert("L").resize((image_size, image_size), Image.Resampling.BILINEAR)
                drawings.append(255 - np.asarray(small))
                labels.append(names.setdefault(f"{parts[1]}/{parts[2]}", len(names)))
    except (zipfile.BadZipFile, OSError, EOFError, SyntaxError, zlib.error) as error:
        raise DataError(f"{path}: not a readable zip of drawings ({error}); download it again") from None
    pixels = torch.from_numpy(np.array(drawings, dtype=np.uint8)).view(-1, 1, image_size, image_size)
    return LabeledImages(pixels, labels, list(names), channels=1)
