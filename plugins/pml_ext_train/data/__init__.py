"""Data sets by name, with splits by class or by image, and transforms."""

from __future__ import annotations

from collections.abc import Callable

from pml_ext.errors import needs_extra
from pml_ext.lazy import require_packages

require_packages(("PIL", "torchvision"), "train", "a data set")  # checked here, imported on first use
with needs_extra("train", "a data set"):
    from . import image_sets, omniglot
    from .augmentation import ImageTransforms as ImageTransforms
    from .augmentation import NamedTransform as NamedTransform
    from .augmentation import torchvision_transforms as torchvision_transforms
    from .digits import digits as digits
    from .digits import digits_unseen as digits_unseen
    from .folder import CLUSTERS_COLUMNS as CLUSTERS_COLUMNS
    from .folder import CLUSTERS_TABLE as CLUSTERS_TABLE
    from .folder import GONE as GONE
    from .folder import SPLIT_FOLDERS as SPLIT_FOLDERS
    from .folder import SYSTEM_FOLDER as SYSTEM_FOLDER
    from .folder import VALIDATION_FOLDERS as VALIDATION_FOLDERS
    from .folder import class_levels as class_levels
    from .folder import contact_sheets as contact_sheets
    from .folder import folder as folder
    from .folder import is_run as is_run
    from .folder import is_system_folder as is_system_folder
    from .folder import listed_sheets as listed_sheets
    from .folder import visible_entries as visible_entries
    from .images import LabeledImages as LabeledImages
    from .listed import pairs as pairs
    from .listed import triplets as triplets
    from .omniglot import omniglot_small as omniglot_small
    from .preparation import left_out_text as left_out_text
    from .preparation import prepare as prepare
    from .published import DatasetInfo as DatasetInfo
    from .published import cache_folder as cache_folder
    from .published import check_archives as check_archives
    from .published import get_archives as get_archives
    from .reading import IMAGE_ENDINGS as IMAGE_ENDINGS
    from .reading import Box as Box
    from .reading import bits_of as bits_of
    from .reading import image_tensor as image_tensor
    from .reading import open_image as open_image
    from .reading import read_image as read_image
    from .reading import shown_size as shown_size
    from .reading import upright as upright
    from .rows import columns_of_parquet as columns_of_parquet
    from .rows import is_empty as is_empty
    from .rows import read_rows as read_rows
    from .rows import table_text as table_text
    from .splits import DataSplits as DataSplits
    from .splits import hold_out_classes as hold_out_classes
    from .table import TableRow as TableRow
    from .table import has_split as has_split
    from .table import rows_of_table as rows_of_table
    from .table import table as table
    from .thumbnails import placeholder as placeholder
    from .thumbnails import thumbnail as thumbnail
    from .transforms import Pipeline as Pipeline
    from .transforms import Steps as Steps
    from .transforms import build_transforms as build_transforms
    from .transforms import raw_pixels as raw_pixels
    from .vector_file import VectorFile as VectorFile
    from .vector_file import is_vector_file as is_vector_file
    from .vector_file import read_vectors as read_vectors
    from .vectors import vectors as vectors


def builtin_datasets() -> dict[str, Callable[..., DataSplits]]:
    """Return the core's data sets by name, except those of :data:`PATH_FACTORIES`."""
    return {
        "cars196": image_sets.cars196,
        "cub": image_sets.cub,
        "inshop": image_sets.inshop,
        "sop": image_sets.sop,
        "digits": digits,
        "imagenet": image_sets.imagenet,
        "omniglot": omniglot.omniglot,
        "digits-unseen": digits_unseen,
        "omniglot-small": omniglot_small,
    }


def published_sets() -> dict[str, DatasetInfo]:
    """Return the descriptions of the published data sets by name."""
    sets = [image_sets.CARS196, image_sets.CUB, image_sets.IMAGENET, image_sets.INSHOP]
    return {about.name: about for about in (*sets, omniglot.ABOUT, omniglot.SMALL, image_sets.SOP)}


PATH_FACTORIES: dict[str, tuple[Callable[..., DataSplits], str]] = {
    "folder": (folder, "folder:PATH, a folder with one sub-folder of images per class"),
    "table": (table, "table:FILE.csv, a table (or .parquet) with the columns label and path, and maybe split"),
    "vectors": (vectors, "vectors:FILE, a .npz, .parquet or .safetensors file with embeddings and labels"),
    "pairs": (pairs, "pairs:FILE.csv, a file with the columns image1, image2, same and split"),
    "triplets": (triplets, "triplets:FILE.csv, a file with the columns anchor, positive, negative and split"),
}
"""Data sets by a name and a path, ``folder:PATH``, with their form."""
