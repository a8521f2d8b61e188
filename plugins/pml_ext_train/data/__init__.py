"""Data sets by name, with splits by class or by image, and transforms."""

from collections.abc import Callable

from pml_ext.errors import needs_extra
from pml_ext.lazy import require_packages

require_packages(("PIL", "torchvision"), "train", "a data set")  # checked here, imported on first use
with needs_extra("train", "a data set"):
    from . import image_sets, omniglot
    from .augmentation import (
        ImageTransforms as ImageTransforms,
        NamedTransform as NamedTransform,
        torchvision_transforms as torchvision_transforms,
    )
    from .companions import Companions as Companions, companions_in as companions_in
    from .digits import digits as digits, digits_unseen as digits_unseen
    from .exclusion import (
        AS_KEPT as AS_KEPT,
        IGNORE_FILE as IGNORE_FILE,
        Exclusion as Exclusion,
        FolderRules as FolderRules,
        Pages as Pages,
    )
    from .folder import (
        SPLIT_FOLDERS as SPLIT_FOLDERS,
        VALIDATION_FOLDERS as VALIDATION_FOLDERS,
        class_levels as class_levels,
        folder as folder,
    )
    from .images import LabeledImages as LabeledImages, Transform as Transform
    from .listed import pairs as pairs, triplets as triplets
    from .listing import (
        CLUSTERS_COLUMNS as CLUSTERS_COLUMNS,
        CLUSTERS_TABLE as CLUSTERS_TABLE,
        SYSTEM_FOLDER as SYSTEM_FOLDER,
        Listing as Listing,
        is_run as is_run,
        is_system_folder as is_system_folder,
        list_folder as list_folder,
        listed_sheets as listed_sheets,
        visible_entries as visible_entries,
    )
    from .omniglot import omniglot_small as omniglot_small
    from .preparation import left_out_text as left_out_text, prepare as prepare
    from .published import (
        DatasetInfo as DatasetInfo,
        cache_folder as cache_folder,
        check_archives as check_archives,
        get_archives as get_archives,
    )
    from .reading import (
        IMAGE_ENDINGS as IMAGE_ENDINGS,
        Box as Box,
        DamagedImageError as DamagedImageError,
        bits_of as bits_of,
        image_tensor as image_tensor,
        open_image as open_image,
        read_image as read_image,
        shown_size as shown_size,
        upright as upright,
    )
    from .rows import (
        columns_of_parquet as columns_of_parquet,
        is_empty as is_empty,
        read_rows as read_rows,
        table_text as table_text,
    )
    from .splits import DataSplits as DataSplits, classes_of_two as classes_of_two, hold_out_classes as hold_out_classes
    from .table import TableRow as TableRow, has_split as has_split, rows_of_table as rows_of_table, table as table
    from .thumbnails import placeholder as placeholder, thumbnail as thumbnail
    from .transforms import (
        Pipeline as Pipeline,
        Steps as Steps,
        build_transforms as build_transforms,
        raw_pixels as raw_pixels,
    )
    from .vector_file import VectorFile as VectorFile, is_vector_file as is_vector_file, read_vectors as read_vectors
    from .vectors import vectors as vectors


def builtin_datasets() -> dict[str, Callable[..., DataSplits]]:
    """Return the core's data sets by name, except the names in :data:`PATH_FACTORIES`."""
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
