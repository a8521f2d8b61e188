"""Reading of the embeddings of all parts."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pml_ext.errors import DataError, needs_extra, one_line
from pml_ext_train.retrieval import EmbeddedRows, RowsOfFolder

from .tables import about, embeddings_of, opened

with needs_extra("parquet", "a Parquet file"):
    import pyarrow


def read(place: Path, identity: str, by: str) -> RowsOfFolder:
    """Read all files of a folder; DataError if one is missing, damaged, or of other origin."""
    every = _all_files(place, identity, by)
    skipped: dict[str, str] = {}
    for found in every.values():
        skipped |= found["skipped"]
    return RowsOfFolder(next(iter(every.values()))["folder"], _rows_of(every), skipped)


def _all_files(place: Path, identity: str, by: str) -> dict[Path, dict[str, Any]]:
    """Metadata of a complete listing's files."""
    every = {file: about(file) for file in sorted(place.glob("embeddings-*.parquet"))}
    if not every:
        raise DataError(f"{place}: no embeddings; type: pml-ext embed RUN FOLDER --part 1/1 -o {place}")
    first = next(iter(every))
    for file, found in every.items():
        by_of_file = found.get("by", "embeddings")
        if by_of_file != by:
            raise DataError(f"{file}: the {by_of_file} of images, not their {by}; type --by {by_of_file}")
        if found["identity"] != identity:
            raise DataError(f"{file}: of another network, or another state of the run ({found['identity']})")
        if found["listing"] != every[first]["listing"]:
            raise DataError(f"{file}: of another listing of images than {first}; delete one of them")
    wanted = every[first]["segments"]
    missing = sorted(set(range(wanted)) - {found["number"] for found in every.values()})
    if missing:
        raise DataError(
            f"{place}: {len(missing):,} of {wanted:,} files are not there, number {missing[0]} first; embed the parts "
            "that are missing, or were stopped, again"
        )
    return every


def _rows_of(files: Iterable[Path]) -> Iterator[EmbeddedRows]:
    for file in files:
        try:
            with opened(file) as read:
                table = read.read()
        except (OSError, pyarrow.ArrowException) as error:
            raise DataError(f"{file}: damaged ({one_line(error)}); delete it, and embed its part again") from None
        stats = list(zip(table["size"].to_pylist(), table["time"].to_pylist(), strict=True))
        yield EmbeddedRows(table["path"].to_pylist(), stats, embeddings_of(table))
