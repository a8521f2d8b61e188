"""Data sets by name, with splits by class or by image, and transforms."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import needs_extra

with needs_extra("train", "a data set"):
    from .digits import digits, digits_unseen
    from .folder import folder, image_files, visible_files
    from .omniglot import omniglot_small
    from .splits import DataSplits, LabelledImages, hold_out_classes, read_image
    from .transforms import build_transforms, raw_pixels


def builtin_datasets() -> dict[str, Callable[..., DataSplits]]:
    """The core's data sets by name; ``folder:PATH`` is looked up apart."""
    return {"digits": digits, "digits-unseen": digits_unseen, "omniglot-small": omniglot_small}


__all__ = [
    "DataSplits",
    "LabelledImages",
    "build_transforms",
    "builtin_datasets",
    "digits",
    "digits_unseen",
    "folder",
    "hold_out_classes",
    "image_files",
    "omniglot_small",
    "raw_pixels",
    "read_image",
    "visible_files",
]
