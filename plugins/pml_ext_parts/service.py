"""The service ``parts``: :class:`pml_ext_train.retrieval.parts.PartsService`."""

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path

from pml_ext_train.data import Listing
from pml_ext_train.retrieval import FileEmbedder, RayWorkers, RowsOfFolder, Written

from .embedding import embedded_segments
from .listing import listed
from .segments import Work


def write(embedder: FileEmbedder, images: Listing | str, part: int, parts: int, out: Path) -> Written:
    """Embed a part of the images into files, except existing ones."""
    from .writing import write_part

    work = listed(images, embedder.rules)
    return _written(work, part, parts, write_part(embedder, work, part, parts, out))


def write_on_ray(
    embedder: FileEmbedder,
    load: Callable[[], FileEmbedder],
    images: Listing | str,
    part: int,
    parts: int,
    out: Path,
    workers: RayWorkers,
) -> Written:
    """Embed a part with Ray Data; each worker calls ``load``."""
    from . import on_ray

    work = listed(images, embedder.rules)
    with contextlib.redirect_stdout(sys.stderr):  # Ray prints its progress on stdout
        embedded = on_ray.write_on_ray(embedder, load, work, part, parts, out, workers)
    return _written(work, part, parts, embedded)


def _written(work: Work, part: int, parts: int, images: int) -> Written:
    return Written(images, files=len(work.part(part, parts)), files_of_all_parts=len(work.segments))


def read(place: Path, identity: str, by: str) -> RowsOfFolder:
    """Read all files of a folder; DataError if one is missing or damaged."""
    from . import reading

    return reading.read(place, identity, by)


def embedded(embedder: FileEmbedder, images: str) -> RowsOfFolder:
    """Embed images without writing files."""
    work = listed(images, embedder.rules)
    segments = embedded_segments(embedder, work, range(len(work.segments)))
    return RowsOfFolder(work.folder, (rows for _, rows, _ in segments), {})
