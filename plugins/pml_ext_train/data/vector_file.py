"""Reads and checks a file of vectors, with labels, ids, a split and groups."""

import json
import math
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pml_ext.errors import DataError, counted, first_of, needs_extra, one_line, shortened, unknown

from ..files.stat import composed
from .rows import parquet_of

KEYS = ("embeddings", "labels", "ids", "split", "groups")
PARTS = ("train", "test", "validation")

Texts = NDArray[np.str_]


class VectorFile(NamedTuple):
    """The content of a file of vectors; None for a key that the file does not have."""

    path: Path
    embeddings: NDArray[np.float32]  # [N, D]
    ids: Texts  # unique, [N]; by default the numbers of the rows
    labels: NDArray[np.int64] | None  # indices into class_names, [N]
    class_names: list[str]  # sorted as numbers, or as texts
    split: Texts | None  # each one of PARTS, [N]
    groups: Texts | None  # "" for none, [N]
    unused: list[str]  # names of keys, or columns, that are not read


def is_vector_file(path: str | Path) -> bool:
    """Whether a path has the ending of a file of vectors."""
    return Path(path).suffix.lower() in _READERS


def read_vectors(path: Path) -> VectorFile:
    """Read and check a ``.npz``, ``.parquet`` or ``.safetensors`` file; no code in it is run.

    Raises DataError, or MissingExtraError if the package that reads the file is missing.
    """
    remedy = f"wanted vectors:FILE, a {', '.join(_READERS)} file"
    if not path.exists():
        raise DataError(f"{path}: no such file; {remedy}")
    if not path.is_file():  # a pipe or a device may never end
        raise DataError(f"{path}: not a regular file; {remedy}")
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"{path}: its name has no ending of a vector file; {remedy}")
    columns, names = reader(path)
    unused = [name for name in names if name not in KEYS]
    if "embeddings" not in columns:
        found = first_of(sorted([*columns, *unused]), 8) or "none"
        hint = ""
        if path.suffix.lower() == ".parquet" and len(unused) > 1:
            hint = "; if each column is one number, make one column of lists: table[names].values.tolist()"
        raise DataError(f"{path}: no key 'embeddings', [N, D], among the keys {found}{hint}")

    embeddings = _checked_embeddings(path, columns["embeddings"])
    count = len(embeddings)
    texts = {name: _texts(path, name, columns[name], count) for name in ("ids", "split", "groups") if name in columns}
    ids = texts.get("ids", np.arange(count).astype(str))
    labels = None
    class_names: list[str] = []
    if "labels" in columns:
        labels, class_names = _labels(path, columns["labels"], count)
    with np.errstate(invalid="ignore"):  # infinity less infinity is NaN
        sums = embeddings.sum(axis=1, dtype=np.float64)
    infinite = np.flatnonzero(~np.isfinite(sums))
    if len(infinite):
        first = infinite[0]
        raise DataError(
            f"{path}: {len(infinite)} of {count} vectors contain NaN or infinity, row {first} ({ids[first]}) first; "
            "remove these rows"
        )
    if "ids" in columns:
        _check_ids(path, ids)
    _check_split(path, texts.get("split"))
    groups = texts.get("groups")
    if groups is not None:
        groups = np.where(_are_missing(groups), "", groups)
        if not (groups != "").any():
            raise DataError(f"{path}: groups are empty in all rows; fill them, or delete the key 'groups'")
    return VectorFile(path, embeddings, ids, labels, class_names, texts.get("split"), groups, unused)


Columns = tuple[dict[str, Any], list[str]]
"""Arrays, or lists of texts, by key, and the names of all keys."""


def _read_npz(path: Path) -> Columns:
    columns: dict[str, Any] = {}
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path}: not a .npz file; write it with numpy.savez(FILE, embeddings=..., labels=...)")
    try:
        with np.load(path, allow_pickle=False) as archive:
            for name in _used(archive.files):
                _check_array(path, archive.zip, name)
                columns[name] = archive[name]
            return columns, archive.files
    except MemoryError as error:
        raise DataError(
            f"{path}: more than fits into memory ({one_line(error)}); save fewer vectors, or float16"
        ) from None
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise _unreadable(path, error) from None


def _check_array(path: Path, archive: zipfile.ZipFile, name: str) -> None:
    """Raise DataError for Python objects, which may run code, and for a false size."""
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    entry = archive.getinfo(f"{name}.npy")
    with archive.open(entry) as file:
        version = np.lib.format.read_magic(file)
        shape, _, dtype = readers[version](file)
        stored = entry.file_size - file.tell()
    if dtype.hasobject:
        raise DataError(
            f"{path}: {name} are Python objects, and loading them may run a program; save numbers, or texts as "
            f"numpy.array({name}, dtype=str)"
        )
    claimed = math.prod(shape) * dtype.itemsize
    if claimed != stored:
        raise DataError(
            f"{path}: {name} claim {claimed:,} bytes, {list(shape)} of {dtype}, but have {stored:,}; write it again"
        )


def _read_parquet(path: Path) -> Columns:
    with parquet_of(path) as parquet:
        names = parquet.read_schema(path).names
        read = parquet.read_table(path, columns=_used(names), use_threads=True)
        return {name: _column(path, name, read[name]) for name in read.column_names}, names


def _column(path: Path, name: str, column: Any) -> Any:
    """A column of a Parquet table as an array (``[N, D]`` for lists), or a list of texts."""
    import pyarrow.compute as compute
    import pyarrow.types as types

    if column.null_count:
        first = compute.index(compute.is_null(column), True).as_py()
        raise DataError(f"{path}: {name}: {counted(column.null_count, 'row')} without a value, row {first} first")
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    is_list = types.is_list(column.type) or types.is_large_list(column.type) or types.is_fixed_size_list(column.type)
    if types.is_integer(column.type) or types.is_floating(column.type):
        return column.to_numpy()
    if not is_list:
        return column.to_pylist()
    lengths = sorted(compute.unique(compute.list_value_length(column)).to_pylist()) or [0]
    if len(lengths) > 1:
        raise DataError(f"{path}: {name} are lists of {lengths[0]} to {lengths[-1]} numbers; they need one length")
    values = compute.list_flatten(column)
    if values.null_count:
        raise DataError(f"{path}: {name}: {counted(values.null_count, 'number')} of the vectors are missing")
    return values.to_numpy().reshape(len(column), lengths[0])


def _read_safetensors(path: Path) -> Columns:
    with needs_extra("train", str(path)):
        from safetensors import SafetensorError, safe_open
    columns: dict[str, Any] = {}
    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            texts = file.metadata() or {}
            for name in _used(names):
                tensor = file.get_tensor(name)
                if tensor.is_floating_point():  # bfloat16 and others that numpy does not have
                    tensor = tensor.float()
                columns[name] = tensor.numpy()
            for name in _used(texts):
                columns[name] = json.loads(texts[name])
    except (OSError, ValueError, SafetensorError) as error:
        raise _unreadable(path, error) from None
    return columns, names


_READERS = {".npz": _read_npz, ".parquet": _read_parquet, ".safetensors": _read_safetensors}


def _used(names: Iterable[str]) -> list[str]:
    return [name for name in names if name in KEYS]


def _unreadable(path: Path, error: Exception) -> DataError:
    kind = path.suffix.lower()
    return DataError(f"{path}: cannot be read as a {kind} file ({shortened(one_line(error), 200)}); write it again")


def _checked_embeddings(path: Path, column: Any) -> NDArray[np.float32]:
    array = np.asarray(column)
    if array.dtype.kind not in "fiu":
        raise DataError(f"{path}: embeddings have the type {array.dtype}; they must be numbers, [N, D]")
    if array.ndim != 2 or 0 in array.shape:
        raise DataError(f"{path}: embeddings have the shape {list(array.shape)}; they need [N, D], a vector per row")
    with np.errstate(over="ignore"):  # becomes infinite, which is an error
        vectors: NDArray[np.float32] = np.require(array, np.float32, ["C", "W"])  # arrays of pyarrow are read-only
    return vectors


def _texts(path: Path, name: str, column: Any, count: int) -> Texts:
    try:
        array = np.asarray(column)
    except ValueError:  # lists of different lengths
        raise DataError(f"{path}: {name} are lists of lists; they need [{count}], one per embedding") from None
    if array.shape != (count,):
        raise DataError(f"{path}: {name} have the shape {list(array.shape)}; they need [{count}], one per embedding")
    if array.dtype.kind in "iu":
        return array.astype(str)
    if array.dtype.kind not in "US":
        hint = f": {name}.astype(int), or {name}.astype(str)" if array.dtype.kind in "fb" else ""
        raise DataError(f"{path}: {name} have the type {array.dtype}, not integers or texts{hint}")
    try:
        texts = np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array
        "".join(texts.tolist()).encode()  # no file or database can keep half of a surrogate pair
    except UnicodeError:
        raise DataError(f"{path}: {name} contain text that is not valid Unicode; write them again") from None
    return texts


def _are_missing(texts: Texts) -> NDArray[np.bool_]:
    """Mask ``[N]`` of texts that stand for no value, as numpy writes NaN and None of pandas."""
    return np.isin(texts, ("", "nan", "None", "<NA>"))


def _labels(path: Path, column: Any, count: int) -> tuple[NDArray[np.int64], list[str]]:
    """Class index of each vector ``[N]``, and sorted class names."""
    given = column
    if getattr(column, "shape", None) != (count,) or column.dtype.kind not in "iu":
        given = _texts(path, "labels", column, count)
        empty = np.flatnonzero(_are_missing(given))
        if len(empty):
            raise DataError(
                f"{path}: {counted(len(empty), 'label')} of {count} are empty, row {empty[0]} first, "
                f"{str(given[empty[0]])!r}; remove these rows"
            )
        given = np.array([composed(name) for name in given.tolist()])
    values, numbers = np.unique(given, return_inverse=True)
    return numbers.astype(np.int64), [str(value) for value in values.tolist()]


def _check_ids(path: Path, ids: Texts) -> None:
    empty = np.flatnonzero(ids == "")
    if len(empty):
        raise DataError(f"{path}: {counted(len(empty), 'id')} of {len(ids)} are empty, row {empty[0]} first")
    known, counts = np.unique(ids, return_counts=True)
    repeated = known[counts > 1]
    if len(repeated):
        rows = np.flatnonzero(ids == repeated[0])
        raise DataError(
            f"{path}: {counted(len(repeated), 'id')} shared by several vectors, {str(repeated[0])!r} by the rows "
            f"{rows[0]} and {rows[1]}; give each vector its own"
        )


def _check_split(path: Path, split: Texts | None) -> None:
    if split is None:
        return
    unknown_rows = np.flatnonzero(~np.isin(split, PARTS))
    if len(unknown_rows):
        row = unknown_rows[0]
        raise DataError(f"{path}: split of row {row}: {unknown('part', str(split[row]), PARTS)}")
    for part in ("train", "test"):
        if not (split == part).any():
            found = ", ".join(sorted(set(split.tolist())))
            raise DataError(f"{path}: split has no {part!r}; found {found}; it needs train and test, maybe validation")
