"""Parquet files of embeddings, with metadata, and of images."""

import json
from pathlib import Path
from typing import Any

from pml_ext.errors import DataError, needs_extra, one_line
from pml_ext_train.retrieval import Vectors

with needs_extra("parquet", "a Parquet file"):
    import pyarrow
    import pyarrow.parquet as parquet

META = b"pml_ext"  # key of the metadata of a file of embeddings
OF_PARTS = "delete it, and write it again"  # remedies for a file that cannot be read
OF_IMAGES = "wanted one Parquet file with the columns path and image (bytes)"


def opened(file: Path, remedy: str = OF_PARTS) -> Any:
    """Open a Parquet file; DataError with a remedy if that fails."""
    try:
        return parquet.ParquetFile(file)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{file}: no Parquet file, or cut ({one_line(error)}); {remedy}") from None


def column(file: Path, group: int, name: str) -> list[Any]:
    """A column of a row group of a table of images."""
    try:
        return opened(file, OF_IMAGES).read_row_group(group, [name])[name].to_pylist()  # type: ignore[no-any-return]
    except (KeyError, pyarrow.ArrowException) as error:
        raise DataError(f"{file}: cannot be read ({one_line(error)})") from None


def about(file: Path) -> dict[str, Any]:
    """The metadata of a file of embeddings."""
    with opened(file) as read:
        text = (read.schema_arrow.metadata or {}).get(META)
    if text is None:
        raise DataError(f"{file}: no embeddings of pml-ext embed --part")
    return json.loads(text)  # type: ignore[no-any-return]


def embeddings_of(table: pyarrow.Table) -> Vectors:
    """The embeddings of a table, ``[N, D]``."""
    size = table.schema.field("embedding").type.list_size
    return table["embedding"].combine_chunks().flatten().to_numpy().reshape(-1, size)  # type: ignore[no-any-return]
