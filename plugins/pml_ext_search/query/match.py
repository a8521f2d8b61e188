"""The answers to many queries, written to a file."""

from __future__ import annotations

import functools
import itertools
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pml_ext.errors import needs_extra
from pml_ext.registry import service
from pml_ext_train.files import utf8_of, write_atomically
from pml_ext_train.retrieval import EmbeddedRows, PartsService, RowsOfFolder

from .query import Answer, Answers

if TYPE_CHECKING:
    from pml_ext_train.data import Listing, VectorFile

    from ..embedding.embedding import ImageEmbedder
    from ..embedding.vectors import VectorEmbedder

_BATCH = 2048  # vectors that are embedded and searched at a time


def match(embedder: ImageEmbedder, images: Listing | str, find: Answers, out: Path) -> tuple[int, int]:
    """Write the answers to all images of a listing; return the numbers of images and answers.

    Parquet has a row per answer (``query``, ``rank``, ``path``, ``class``, ``id``, ``distance``); JSON lines have an
    object per image.
    """
    if isinstance(images, str):
        parts: PartsService = service("parts", f"the images of {images}")
        queries = parts.embedded(embedder, images)
    else:
        queries = RowsOfFolder(str(images.folder), _embedded_files(embedder, images), {})

    def batches() -> Iterator[list[tuple[str, Answer]]]:
        for names, _, points in queries.rows:
            paths = [os.path.join(queries.folder, name) for name in names]
            found = find(paths, torch.from_numpy(points)) if names else []
            yield list(zip(names, found, strict=True))

    return _write_answers(batches(), out)


def _embedded_files(embedder: ImageEmbedder, listing: Listing) -> Iterator[EmbeddedRows]:
    files = [listing.folder / name for name in listing.names]
    done = 0
    for batch in embedder.embed_files(files):
        of_batch = list(zip(listing.names[done : done + len(batch)], batch, strict=True))
        done += len(batch)
        embedder.warn_of_skipped({name: why for name, why in of_batch if isinstance(why, str)})
        points = {name: point for name, point in of_batch if not isinstance(point, str)}
        if points:
            yield EmbeddedRows([*points], [], np.stack([*points.values()]))  # answers need no sizes and times


def match_vectors(
    embedder: VectorEmbedder, file: VectorFile, find: Answers, out: Path, names: Sequence[str]
) -> tuple[int, int]:
    """As :func:`match`, for the vectors of a file with their ``names`` in the index."""

    def batches() -> Iterator[list[tuple[str, Answer]]]:
        for start in range(0, len(file.ids), _BATCH):
            rows = slice(start, start + _BATCH)
            points = embedder.embed(file.embeddings[rows], file.ids[rows])
            found = find(names[rows], points)
            yield list(zip(file.ids[rows].tolist(), found, strict=True))

    return _write_answers(batches(), out)


def _write_answers(answers: Iterator[list[tuple[str, Answer]]], out: Path) -> tuple[int, int]:
    counts = Counter[str]()

    def counted_batches() -> Iterator[list[tuple[str, Answer]]]:
        for batch in answers:
            counts["queries"] += len(batch)
            for _, answer in batch:
                counts["answers"] += len(answer.paths)
            yield batch

    out.parent.mkdir(parents=True, exist_ok=True)
    write = _write_parquet if out.suffix == ".parquet" else _write_lines
    write_atomically(out, functools.partial(write, batches=counted_batches()))
    return counts["queries"], counts["answers"]


def _write_lines(path: Path, batches: Iterator[list[tuple[str, Answer]]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for name, answer in itertools.chain.from_iterable(batches):
            about = {
                "query": name,
                "paths": answer.paths,
                "classes": answer.classes,
                "ids": answer.ids,
                "distances": answer.distances,
            }
            file.write(json.dumps(about) + "\n")


def _write_parquet(path: Path, batches: Iterator[list[tuple[str, Answer]]]) -> None:
    with needs_extra("parquet", "-o FILE.parquet"):
        import pyarrow
        import pyarrow.parquet as parquet

    schema = pyarrow.schema(
        [
            ("query", pyarrow.string()),
            ("rank", pyarrow.int32()),
            ("path", pyarrow.string()),
            ("class", pyarrow.string()),
            ("id", pyarrow.int64()),
            ("distance", pyarrow.float32()),
        ]
    )
    with parquet.ParquetWriter(path, schema) as writer:
        for batch in batches:
            rows: list[dict[str, Any]] = []
            for name, answer in batch:
                rows.extend(_parquet_rows(name, answer))
            writer.write_table(pyarrow.Table.from_pylist(rows, schema=schema))


def _parquet_rows(name: str, answer: Answer) -> Iterator[dict[str, Any]]:
    columns = zip(answer.paths, answer.classes, answer.ids, answer.distances, strict=True)
    for rank, (path, class_name, id, distance) in enumerate(columns, start=1):
        yield {
            "query": utf8_of(name),
            "rank": rank,
            "path": utf8_of(path),
            "class": utf8_of(class_name),
            "id": id,
            "distance": distance,
        }
