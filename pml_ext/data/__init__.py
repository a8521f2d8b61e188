"""Data sets by name, with splits by class or by image, and transforms."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import needs_extra
from ..lazy import check_there

check_there(("PIL", "torchvision"), "train", "a data set")  # imported by what uses them
with needs_extra("train", "a data set"):
    from . import imagenet, omniglot, photographs
    from .digits import digits, digits_unseen
    from .folder import folder
    from .omniglot import omniglot_small
    from .published import About, check_archives, get_archives
    from .reading import Box, image_tensor, read_image
    from .splits import DataSplits, LabeledImages, hold_out_classes, prepare
    from .table import table
    from .transforms import Pipeline, Steps, build_transforms, raw_pixels


def builtin_datasets() -> dict[str, Callable[..., DataSplits]]:
    """Return the core's data sets by name, but for ``folder:PATH`` and ``table:FILE.csv``."""
    of_photographs = [photographs.cars196, photographs.cub, photographs.inshop, photographs.sop]
    named = [*of_photographs, digits, imagenet.imagenet, omniglot.omniglot]
    return {factory.__name__: factory for factory in named} | {
        "digits-unseen": digits_unseen,
        "omniglot-small": omniglot_small,
    }


def published_sets() -> dict[str, About]:
    """Return the descriptions of the published data sets by name."""
    sets = [photographs.CARS196, photographs.CUB, imagenet.ABOUT, photographs.INSHOP]
    return {about.name: about for about in (*sets, omniglot.ABOUT, omniglot.SMALL, photographs.SOP)}


PATH_FACTORIES: dict[str, tuple[Callable[..., DataSplits], str]] = {
    "folder": (folder, "folder:PATH, a folder with one sub-folder of images per class"),
    "table": (table, "table:FILE.csv, a table with the columns label, path and split"),
}
"""Data sets by a name and a path, ``folder:PATH``, with their form."""


__all__ = [
    "PATH_FACTORIES",
    "About",
    "Box",
    "DataSplits",
    "LabeledImages",
    "Pipeline",
    "Steps",
    "build_transforms",
    "builtin_datasets",
    "check_archives",
    "digits",
    "digits_unseen",
    "folder",
    "get_archives",
    "hold_out_classes",
    "image_tensor",
    "omniglot_small",
    "prepare",
    "published_sets",
    "raw_pixels",
    "read_image",
    "table",
]
