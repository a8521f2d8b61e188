"""An index in a store: brought over, its recall measured, and searched; matching of many images."""

from __future__ import annotations

import functools
import json
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from .. import registry
from ..collection import (
    Changes,
    Embedded,
    RetrievalWarning,
    class_of,
    crc_of,
    path_bytes,
)
from ..errors import ConfigError, printable
from ..files import write_atomically
from ..search import sampled_recall
from ..stores import BATCH, Numbers, Rows, Store, Where
from .query import Answer, Gallery, check_radius

if TYPE_CHECKING:
    from .embedding import ImageEmbedder
    from .parts import Work

Answers = Callable[[Sequence[str], Tensor], list[Answer]]
_SCHEME = re.compile(r"([a-z][a-z0-9-]+):(.+)", re.DOTALL)


def is_store(text: str) -> bool:
    """Return whether a text is the address of a store, ``SCHEME:ADDRESS``, and no folder."""
    return bool(_SCHEME.fullmatch(text)) and not os.path.isdir(text)


def open_store(text: str, identity: str, size: int) -> Store:
    """Open a store, in which each state of a network has a table of its own."""
    match = _SCHEME.fullmatch(text)
    if match is None:
        schemes = ", ".join(f"{scheme}:" for scheme in registry.factories("store"))
        raise ConfigError(f"{text}: wanted SCHEME:ADDRESS, with one of {schemes}")
    store: Store = registry.factory("store", match[1])(match[2], f"pml_ext_{identity}", size)
    return store


def bring_over(embedded: Embedded, store: Store) -> Changes:
    """Write the images that a store lacks or has otherwise, and delete those that an index lacks."""
    assert embedded.ids is not None
    assert embedded.facts is not None
    vectors, ids = embedded.embeddings.cpu().numpy(), embedded.ids
    columns = ids.tolist(), embedded.paths, embedded.facts.tolist(), vectors
    marks = np.array(
        [crc_of(row.data, id, path_bytes(path), *facts) for id, path, facts, row in zip(*columns, strict=True)]
    )
    known = store.marks()
    before = np.array([known.get(id, -1) for id in ids.tolist()], dtype=np.int64)
    differs = np.flatnonzero(before != marks)

    def batches() -> Iterator[Rows]:
        for start in range(0, len(differs), BATCH):
            part: Numbers = differs[start : start + BATCH]
            paths = [embedded.paths[place] for place in part]
            names = [path_bytes(path).decode("utf-8", "backslashreplace") for path in paths]
            yield Rows(ids[part], marks[part], names, [class_of(name) for name in names], vectors[part])

    gone = sorted(known.keys() - {*ids.tolist()})
    if gone:
        store.delete(gone)
    store.write(batches())  # of none too: an index that an earlier write did not complete is completed
    new = int((before < 0).sum())
    return Changes(new, len(differs) - new, len(gone), len(ids) - len(differs))


def recall_of(embedded: Embedded, store: Store) -> float | None:
    """Return recall@10 of a store against exact search, on a sample of at most 200 images; None of a single image."""
    if len(embedded.paths) < 2:
        return None
    assert embedded.ids is not None
    order = np.argsort(embedded.ids)

    def search(points: Tensor, k: int) -> Tensor:
        found = [[answer.id for answer in row] for row in store.search(points.cpu().numpy(), k, Where())]
        ids = np.array([row + [-1] * (k - len(row)) for row in found])
        places = order[np.searchsorted(embedded.ids, ids, sorter=order).clip(max=len(order) - 1)]  # type: ignore[arg-type]
        return torch.from_numpy(np.where(embedded.ids[places] == ids, places, -1))  # type: ignore[index]

    return sampled_recall(embedded.embeddings.cpu())(search)


def answers_from(
    store: Store, gallery: Gallery | None, names: Sequence[str], points: Tensor, k: int, where: Where
) -> list[Answer]:
    """Return the answers of a store to queries of these embeddings; an image of the gallery is none to itself."""
    if k < 1:
        raise ConfigError(f"-k {k}: wanted 1 or more")
    if where.radius is not None:
        check_radius(where.radius)
    own = [None] * len(names) if gallery is None else gallery.images_of(names)
    answers = list[Answer]()
    for name, mine, row in zip(names, own, store.search(points.cpu().numpy(), k + 1, where), strict=True):
        kept = [each for each in row if mine is None or each.id != mine.id][:k]
        ids, paths, classes, distances = zip(*kept, strict=True) if kept else ((), (), (), ())
        query_class = class_of(mine.path) or None if mine else None
        title = name or f"image {len(answers)}"
        answers.append(Answer(title, [*paths], [*distances], [*classes], query_class, [*ids]))
    short = sum(len(answer.paths) < k for answer in answers)
    if short and where.radius is None:
        of = "" if where.within is None else f" of the class {printable(where.within)}"
        text = f"fewer than {k} answers for {short} of {len(answers)} queries: the store has no more images{of}"
        warnings.warn(text, RetrievalWarning, stacklevel=3)
    return answers


# Many queries


def match(embedder: ImageEmbedder, work: Work, answers: Answers, out: Path, workers: int | None) -> tuple[int, int]:
    """Write the answers to all images of a listing; return how many images and answers.

    Parquet has a row per answer (``query``, ``rank``, ``path``, ``class``, ``id``, ``distance``); JSON lines have an
    object per image. A file that is there is replaced when all is written.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    counts = [0, 0]
    writes = _write_parquet if out.suffix == ".parquet" else _write_lines
    write_atomically(out, functools.partial(writes, rows=_answered(embedder, work, answers, workers, counts)))
    return counts[0], counts[1]


def _answered(
    embedder: ImageEmbedder, work: Work, answers: Answers, workers: int | None, counts: list[int]
) -> Iterator[list[tuple[str, Answer]]]:
    from .parts import points_of, tables

    for _, table in tables(embedder, work, range(len(work.segments)), workers):
        names: list[str] = table["path"].to_pylist()
        points = torch.from_numpy(points_of(table).copy())
        found = answers([os.path.join(work.folder, name) for name in names], points) if names else []
        counts[0] += len(found)
        counts[1] += sum(len(answer.paths) for answer in found)
        yield [*zip(names, found, strict=True)]


def _write_lines(path: Path, rows: Iterator[list[tuple[str, Answer]]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for batch in rows:
            for name, answer in batch:
                about = {"query": name, "paths": answer.paths, "classes": answer.classes}
                file.write(json.dumps(about | {"ids": answer.ids, "distances": answer.distances}) + "\n")


def _write_parquet(path: Path, rows: Iterator[list[tuple[str, Answer]]]) -> None:
    import pyarrow
    import pyarrow.parquet as parquet

    kinds = {"query": pyarrow.string(), "rank": pyarrow.int32(), "path": pyarrow.string(), "class": pyarrow.string()}
    schema = pyarrow.schema([*kinds.items(), ("id", pyarrow.int64()), ("distance", pyarrow.float32())])
    with parquet.ParquetWriter(path, schema) as writer:
        for batch in rows:
            columns: list[list[Any]] = [[] for _ in schema]
            for name, answer in batch:
                count = len(answer.paths)
                paths = [path_bytes(each).decode("utf-8", "backslashreplace") for each in answer.paths]
                values: list[Any] = [[name] * count, range(1, count + 1), paths]
                values += [answer.classes, answer.ids, answer.distances]
                for column, more in zip(columns, values, strict=True):
                    column.extend(more)
            writer.write_table(pyarrow.table(columns, schema=schema))
