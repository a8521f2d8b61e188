"""Embedding of the segments of a listing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pml_ext_train.files import FileStat
from pml_ext_train.retrieval import EmbeddedRows, FileEmbedder, Vectors

from .listing import BATCH
from .segments import Segment, Work


class EmbeddedSegment(NamedTuple):
    """The images of a segment, their embeddings, and why others were left out."""

    number: int
    rows: EmbeddedRows
    skipped: dict[str, str]


def embedded_segments(embedder: FileEmbedder, work: Work, numbers: Sequence[int]) -> Iterator[EmbeddedSegment]:
    """Embed segments, and warn of the images that are left out."""
    stream = _stream_of_files(embedder, [work.segments[number] for number in numbers])
    for number in numbers:
        names: list[str] = []
        stats: list[FileStat] = []
        points: list[Vectors] = []
        skipped: dict[str, str] = {}
        images = work.segments[number].images()
        while batch := list(itertools.islice(images, BATCH)):
            if stream is None:
                sources = [source for _, _, source in batch]
                embedded = next(embedder.embed_files(sources, BATCH, workers=0, with_progress=False))
            else:
                embedded = next(stream)
            for (name, stat, _), point in zip(batch, embedded, strict=True):
                if isinstance(point, str):
                    skipped[name] = point
                elif not _is_utf8(name):
                    skipped[name] = f"{name!a}: its name is not valid UTF-8"
                else:
                    names.append(name)
                    stats.append(stat)
                    points.append(point)
        embedder.warn_of_skipped(skipped)
        vectors = np.empty((0, embedder.size), dtype=np.float32)
        if points:
            vectors = np.stack(points)
        yield EmbeddedSegment(number, EmbeddedRows(names, stats, vectors), skipped)


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _stream_of_files(embedder: FileEmbedder, segments: Sequence[Segment]) -> Iterator[list[Vectors | str]] | None:
    """Embeddings of all segments in batches, from one data loader; None unless all images are files.

    Starting workers takes a second, so one loader reads all segments, which end where batches end.
    """
    files: list[Path] = []
    for segment in segments:
        if segment.files is None:
            return None
        files += segment.files
    return embedder.embed_files(files, BATCH)
