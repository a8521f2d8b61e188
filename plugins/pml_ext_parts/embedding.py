"""Embedding of the segments of a listing."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from pml_ext_train.files import FileStat, utf8_of
from pml_ext_train.retrieval import EmbeddedRows, FileEmbedder, Vectors

from .listing import BATCH
from .segments import Segment, Work

Embedded = tuple[int, EmbeddedRows, dict[str, str]]


def embedded_segments(embedder: FileEmbedder, work: Work, numbers: Sequence[int]) -> Iterator[Embedded]:
    """Yield each segment's number, embedded images and skipped files; warn of these files."""
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
                elif utf8_of(name) != name:
                    skipped[name] = f"{name!a}: its name is not valid UTF-8"
                else:
                    names.append(name)
                    stats.append(stat)
                    points.append(point)
        embedder.warn_of_skipped(skipped)
        vectors = np.array(points, dtype=np.float32).reshape(-1, embedder.size)
        yield number, EmbeddedRows(names, stats, vectors), skipped


def _stream_of_files(embedder: FileEmbedder, segments: Sequence[Segment]) -> Iterator[list[Vectors | str]] | None:
    """Embeddings of all segments from one data loader, or None unless all images are files."""
    files: list[Path] = []
    for segment in segments:
        if segment.files is None:
            return None
        files += segment.files
    return embedder.embed_files(files, BATCH)
