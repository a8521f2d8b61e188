"""Segments of images, which are listed without reading them."""

import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from pml_ext.errors import DataError, needs_extra, one_line, shortened
from pml_ext_train.data import (
    AS_KEPT,
    IGNORE_FILE,
    IMAGE_ENDINGS,
    SYSTEM_FOLDER,
    Exclusion,
    FolderRules,
    Listing,
    is_system_folder,
)
from pml_ext_train.files import MISSING, FileStat, file_stat, is_inside

from .segments import Segment, Work, filesystem

BATCH = 64  # images per batch; segments end where batches end
FILES = 1024  # maximum number of segments of a listing; in tables each row group is a segment, in tar files each shard


def listed(images: Listing | str, rules: FolderRules = AS_KEPT) -> Work:
    """Cut a listing into segments.

    ``images`` is a listing of files, an address for pyarrow's file systems, a Parquet table of ``path`` and ``image``
    (bytes), or tar shards, ``photos-{000..015}.tar``. ``rules`` apply to an address, whose pages are not read.
    """
    if not isinstance(images, str):
        return _cut(str(images.folder), images.names, images.stats, images.others)
    if images.endswith(".parquet"):
        return _listed_table(Path(images).resolve())
    if images.endswith(".tar"):
        return _listed_shards(images)
    return _listed_address(images.rstrip("/"), rules.exclude or ())


def _listed_table(file: Path) -> Work:
    from .tables import OF_IMAGES, column, opened

    segments = []
    stat = file_stat(file) or MISSING
    for group in range(opened(file, OF_IMAGES).num_row_groups):
        names = tuple(column(file, group, "path"))
        for name in names:
            if not isinstance(name, str) or not is_inside(name):
                raise DataError(
                    f"{file}: the path {shortened(repr(name), 100)}; wanted one relative to the folder of the images, "
                    "cats/1.jpg"
                )
        segments.append(Segment(str(file), names, (stat,), group))
    return Work(str(file.parent), segments)


def _listed_shards(pattern: str) -> Work:
    with needs_extra("webdataset", "tar shards"):
        from braceexpand import braceexpand
    shards = [Path(shard).resolve() for shard in braceexpand(pattern)]
    segments = []
    for shard in shards:
        if not shard.is_file():
            raise DataError(f"{shard}: no such shard")
        segments.append(Segment(str(shard), stats=(file_stat(shard) or MISSING,)))
    return Work(str(shards[0].parent), segments)


def _listed_address(place: str, exclude: Sequence[str]) -> Work:
    system, root = filesystem(place)  # raises an error without pyarrow
    import pyarrow.fs

    try:
        found = system.get_file_info(pyarrow.fs.FileSelector(root, recursive=True))
    except OSError as error:
        raise DataError(f"{place}: cannot be listed ({one_line(error)})") from None
    stats: dict[str, FileStat] = {}
    others: dict[str, str] = {}
    ignore_file = f"{root}/{IGNORE_FILE}"
    patterns = b""
    if any(file.path == ignore_file for file in found):
        with system.open_input_stream(ignore_file) as stream:
            patterns = stream.read()
    exclusion = Exclusion(place, exclude, patterns.decode("utf-8", "replace"))
    for file in found:
        name = file.path[len(root) + 1 :]
        is_skipped = any(part.startswith(".") or is_system_folder(part) for part in name.split("/"))
        if is_system_folder(name.rpartition("/")[2]):
            others[name] = f"{place}/{name}: {SYSTEM_FOLDER}"
        if file.is_file and not is_skipped and name.lower().endswith(IMAGE_ENDINGS):
            if exclusion.covers(name):
                exclusion.images += 1
            else:
                stats[name] = (file.size or 0, file.mtime_ns or 0)
    exclusion.check_rest([*stats])
    if exclusion.summary:
        warnings.warn(exclusion.summary, UserWarning, stacklevel=4)
    names = sorted(stats, key=lambda name: name.split("/"))
    return _cut(place, names, [stats[name] for name in names], others)


def _cut(place: str, names: Sequence[str], stats: Sequence[FileStat], others: Mapping[str, str] | None = None) -> Work:
    if not names:
        raise DataError(f"{place}: not named like an image")
    length = BATCH * math.ceil(len(names) / (BATCH * FILES))  # whole batches
    starts = range(0, len(names), length)
    segments = [Segment(place, tuple(names[at : at + length]), tuple(stats[at : at + length])) for at in starts]
    return Work(place, segments, others or {})
