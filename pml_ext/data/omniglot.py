"""Omniglot's two small background sets: characters of many alphabets."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import ConfigError, DataError
from .splits import DataSplits, LabelledImages

URL = "https://raw.githubusercontent.com/brendenlake/omniglot/057f034b/python/"
TRAIN, TEST = "images_background_small1.zip", "images_background_small2.zip"
SHA256 = {
    TRAIN: "f38eb80f801274ac2b4dff5b24289016bfaba4a7d5bb50deebf27104ad6cb8a4",
    TEST: "3ccaa407515a8778e5d0861875af38b17e418f301ad5bb3b5a6b65d901a41c7f",
}


def omniglot_small(root: Path | None = None, image_size: int = 28) -> DataSplits:
    """136 characters of five alphabets to train, 106 of three other alphabets to test, 20 drawings each; 2.9 MB.

    Ink is bright on a dark ground. The two files are downloaded once to ``$XDG_CACHE_HOME/pml_ext`` (``~/.cache``), or
    read from ``root``. Trains on all of small1 and tests on the alphabets of small2 that small1 does not have.

    Args:
        root: a folder with ``images_background_small1.zip`` and ``images_background_small2.zip``.
        image_size: height and width to resize the 105 x 105 drawings to, in pixels, from 8 to 105.
    """
    if not 8 <= image_size <= 105:
        raise ConfigError(f"image_size of omniglot-small must be from 8 to 105 pixels, not {image_size}")
    folder = _downloaded() if root is None else root
    missing = [name for name in (TRAIN, TEST) if not (folder / name).is_file()]
    if missing:
        state = f"{folder} has no {' and no '.join(missing)}" if folder.is_dir() else f"{folder}: no such folder"
        raise DataError(
            f"{state}; --data wants a folder with {TRAIN} and {TEST} (from {URL}); without --data they are downloaded"
        )
    train, train_names = _read(folder / TRAIN, image_size, lambda alphabet: True)
    seen = {name.partition("/")[0] for name in train_names}
    test, _ = _read(folder / TEST, image_size, lambda alphabet: alphabet not in seen)
    if len(test) == 0:
        raise DataError(f"{folder / TEST} has no alphabet that {TRAIN} does not have; is it a copy of that file?")
    return DataSplits(train, test, image_size=image_size, channels=1)


def _read(path: Path, image_size: int, wanted: Callable[[str], bool]) -> tuple[LabelledImages, list[str]]:
    """The drawings of a zip with entries ``SET/ALPHABET/CHARACTER/FILE.png``."""
    from PIL import Image

    drawings: list[NDArray[np.uint8]] = []
    labels: list[int] = []
    names: dict[str, int] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in sorted(archive.namelist()):
                parts = entry.split("/")
                if len(parts) != 4 or not entry.endswith(".png") or not wanted(parts[1]):
                    continue
                with Image.open(io.BytesIO(archive.read(entry)), formats=["PNG"]) as drawing:
                    small = drawing.convert("L").resize((image_size, image_size), Image.Resampling.BILINEAR)
                drawings.append(255 - np.asarray(small))
                labels.append(names.setdefault(f"{parts[1]}/{parts[2]}", len(names)))
    except (zipfile.BadZipFile, OSError, EOFError, SyntaxError) as error:
        raise DataError(f"{path}: not a readable zip of drawings ({error}); download it again") from None
    if not drawings:
        pixels = torch.zeros(0, 1, image_size, image_size, dtype=torch.uint8)
    else:
        pixels = torch.from_numpy(np.stack(drawings))[:, None]
    return LabelledImages(pixels, labels, list(names), channels=1), list(names)


def _downloaded() -> Path:
    """The cache folder with both files in it, downloaded if they are not there."""
    from torchvision.datasets.utils import download_url

    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pml_ext" / "omniglot-small"
    for name in (TRAIN, TEST):
        path = folder / name
        if path.is_file() and _sha256(path) == SHA256[name]:
            continue
        partial = path.with_suffix(".part")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            download_url(URL + name, str(folder), partial.name)
        except (OSError, RuntimeError) as error:
            partial.unlink(missing_ok=True)
            raise DataError(
                f"{URL}{name} cannot be downloaded ({error}); fetch {TRAIN} and {TEST} yourself and type --data FOLDER"
            ) from None
        if _sha256(partial) != SHA256[name]:
            partial.unlink()
            raise DataError(f"{URL}{name}: what was downloaded is not the expected file (SHA-256 differs); try again")
        partial.replace(path)
    return folder


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
