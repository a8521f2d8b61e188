"""The data set ``unlabeled``: all images below a folder, or the vectors of a file."""

from pathlib import Path
from typing import Literal

import numpy as np
import torch

from pml_ext.errors import ConfigError, DataError
from pml_ext_train.data import (
    DataSplits,
    FolderRules,
    LabeledImages,
    Pages,
    is_vector_file,
    list_folder,
    read_vectors,
)

from .embedding.reading import found_instead


def unlabeled(
    root: Path | None = None,
    path: str = "",
    image_size: int = 224,
    channels: Literal[1, 3] = 3,
    exclude: list[str] | None = None,
    pages: Pages = "first",
) -> DataSplits:
    """All images below a folder, or the vectors of a file, without labels.

    Args:
        root: the folder that ``path`` is relative to.
        path: the folder, or a ``.npz``, ``.parquet`` or ``.safetensors`` file with ``embeddings``.
        image_size: height and width of the network's input, in pixels.
        channels: 1 (gray) or 3 (color).
        exclude: patterns as in ``.gitignore``, relative to the folder, of files and folders to leave out.
        pages: ``"all"`` makes each page of a TIFF, and each frame of an animation, an image of its own.

    DataError for fewer than two images or vectors.
    """
    place = (root or Path()) / Path(path).expanduser()
    if place.is_file() and is_vector_file(place):
        if exclude or pages != "first":
            raise ConfigError(f"{place} has vectors; exclude and pages are for folders of images, so leave them out")
        file = read_vectors(place)
        rows = torch.from_numpy(file.embeddings)
        if len(rows) < 2:
            raise DataError(f"{place}: {len(rows)} vector; a search needs at least two")
        vectors = LabeledImages(rows, np.zeros(len(rows), dtype=np.int64), [""], ids=file.ids)
        return DataSplits(vectors, labeled=False)
    listing = list_folder(place, FolderRules.of(exclude, pages))
    if not listing.names:
        raise DataError(f"{place}: no images; wanted files that end in .jpg, .png, ...{found_instead(listing)}")
    if len(listing.names) < 2:
        raise DataError(f"{place}: one image, {listing.names[0]}; a search needs at least two")
    files = [place / name for name in listing.names]
    images = LabeledImages(files, np.zeros(len(files), dtype=np.int64), [""], channels=channels)
    return DataSplits(images, image_size=image_size, channels=channels, crop=True, labeled=False, note=listing.left_out)
