"""Writing of embeddings: a Parquet file for each segment of a part."""

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pml_ext.errors import ConfigError, DataError, needs_extra
from pml_ext_train.files import check_writable, write_atomically
from pml_ext_train.retrieval import FileEmbedder

from .embedding import embedded_segments
from .segments import Work
from .tables import META, about

with needs_extra("parquet", "a Parquet file"):
    import pyarrow
    import pyarrow.parquet as parquet


def pending(embedder: FileEmbedder, work: Work, part: int, parts: int, out: Path) -> list[int]:
    """A part's segments that are not written or have changed; creates the folder.

    The first part names the files that are not images.
    """
    numbers = work.part(part, parts)
    identity = embedder.identity
    check_writable("-o", out)
    file = min(out.glob("embeddings-*.parquet"), default=None)  # reading.py checks the others
    if file is not None:
        found = about(file)
        if (found["identity"], found["listing"]) != (identity, work.digest):
            what = "another run" if found["identity"] != identity else "another listing of images"
            raise ConfigError(f"{file} is of {what}; type -o FOLDER for another folder, or delete {out}")
    out.mkdir(parents=True, exist_ok=True)
    if part == 1:
        embedder.warn_of_skipped(work.others)
    return [number for number in numbers if not _is_written(work, number, out, identity)]


def _is_written(work: Work, number: int, out: Path, identity: str) -> bool:
    try:
        found = about(out / work.file(number))
    except DataError:
        return False
    return (found["identity"], found["segment"]) == (identity, work.segments[number].digest)


def write_part(embedder: FileEmbedder, work: Work, part: int, parts: int, out: Path) -> int:
    """Embed a part of a listing; return the number of newly embedded images."""
    numbers = pending(embedder, work, part, parts, out)
    images = 0
    for number, table in tables(embedder, work, numbers, embedder.class_namer(work.names())):
        write_atomically(out / work.file(number), functools.partial(parquet.write_table, table))
        images += table.num_rows
    return images


def tables(
    embedder: FileEmbedder, work: Work, numbers: Sequence[int], class_of: Callable[[str], str]
) -> Iterator[tuple[int, pyarrow.Table]]:
    """Embed segments; yield the number and the table of each."""
    columns = {
        "path": pyarrow.string(),
        "class": pyarrow.string(),
        "size": pyarrow.int64(),
        "time": pyarrow.int64(),
        "embedding": pyarrow.list_(pyarrow.float32(), embedder.size),
    }
    for number, embedded, skipped in embedded_segments(embedder, work, numbers):
        about_segment = {
            "identity": embedder.identity,
            "by": embedder.by,
            "folder": work.folder,
            "listing": work.digest,
            "segment": work.segments[number].digest,
            "number": number,
            "segments": len(work.segments),
            "skipped": skipped,
        }
        schema = pyarrow.schema(columns.items(), {META: json.dumps(about_segment)})
        rows = [
            {"path": name, "class": class_of(name), "size": size, "time": time, "embedding": point}
            for name, (size, time), point in zip(*embedded, strict=True)
        ]
        yield number, pyarrow.Table.from_pylist(rows, schema)
