"""A file of vectors, with labels, ids, a split and groups: read and checked."""

from __future__ import annotations

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
_BLOCK = 1 << 16  # rows that are looked at together

Texts = NDArray[np.str_]


class VectorFile(NamedTuple):
    """The content of a file of vectors; what the file does not have is None."""

    path: Path
    embeddings: NDArray[np.float32]  # [N, D]
    ids: Texts  # unique, [N]; by default the numbers of the rows
    labels: NDArray[np.int64] | None  # indices into class_names, [N]
    class_names: list[str]  # sorted as numbers, or as texts
    split: Texts | None  # each one of PARTS, [N]
    groups: Texts | None  # "" for none, [N]
    unused: list[str]  # names of keys, or columns, that are not read


def is_vector_file(path: str | Path) -> bool:
    """Return whether a path has the ending of a file of vectors."""
    return Path(path).suffix.lower() in _READERS


def read_vectors(path: Path) -> VectorFile:
    """Read and check a ``.npz``, ``.parquet`` or ``.safetensors`` file, without running anything that is in it.

    Raise DataError that says what was found and what is wanted, and MissingExtraError without the package that reads
    the file.
    """
    wanted = f"wanted vectors:FILE, a {', '.join(_READERS)} file"
    if not path.exists():
        raise DataError(f"{path}: no such file; {wanted}")
    if not path.is_file():  # a pipe or a device may never end
        raise DataError(f"{path}: not a regular file; {wanted}")
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"{path}: no file of vectors by its name; {wanted}")
    columns, unused = reader(path)
    if "embeddings" not in columns:
        found = first_of(sorted([*columns, *unused]), 8) or "none"
        hint = ""
        if path.suffix.lower() == ".parquet" and len(unused) > 1:
            hint = "; a column for each number of a vector? Make them one column of lists, table[names].values.tolist()"
        raise DataError(f"{path}: no key 'embeddings', [N, D]; found the keys {found}{hint}")

    embeddings = _checked_embeddings(path, columns["embeddings"])
    count = len(embeddings)
    texts = {name: _texts(path, name, columns[name], count) for name in ("ids", "split", "groups") if name in columns}
    ids = texts.get("ids")
    if ids is None:
        ids = np.arange(count).astype(str)
    labels = None
    class_names: list[str] = []
    if "labels" in columns:
        labels, class_names = _labels(path, columns["labels"], count)
    _check_finite(path, embeddings, ids)
    if "ids" in columns:
        _check_ids(path, ids)
    _check_split(path, texts.get("split"))
    groups = texts.get("groups")
    if groups is not None:
        groups = np.where(_are_missing(groups), "", groups)
    if groups is not None and not (groups != "").any():
        raise DataError(f"{path}: groups are empty in all rows; fill them, or delete the key 'groups'")
    return VectorFile(path, embeddings, ids, labels, class_names, texts.get("split"), groups, unused)


Columns = tuple[dict[str, Any], list[str]]
"""Arrays, or lists of texts, by key, and the names of other keys."""


_STARTS = (b"\x93NUMPY", b"PK\x03\x04", b"PK\x05\x06")  # of .npy files, and of archives with and without files


_DAMAGED = (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError)


def _read_npz(path: Path) -> Columns:
    columns: dict[str, Any] = {}
    with path.open("rb") as file:
        start = file.read(len(_STARTS[0]))
    if start and not start.startswith(_STARTS):
        raise DataError(
            f"{path}: cannot be read as a .npz file, which it is not by its content; wanted numpy.savez(FILE, "
            "embeddings=..., labels=...)"
        )
    try:
        opened = np.load(path, allow_pickle=False)
        if not isinstance(opened, np.lib.npyio.NpzFile):
            raise DataError(f"{path}: a single array; wanted numpy.savez(FILE, embeddings=..., labels=...)")
        with opened as archive:
            for name in _used(archive.files):
                assert archive.zip is not None  # it is open
                _check_claimed_size(path, archive.zip, name)
                columns[name] = _array_of(path, archive, name)
            return columns, _unused(archive.files)
    except MemoryError as error:
        raise DataError(
            f"{path}: more than fits into memory ({one_line(error)}); save fewer vectors, or float16"
        ) from None
    except _DAMAGED as error:
        raise _unreadable(path, error) from None


def _check_claimed_size(path: Path, archive: zipfile.ZipFile, name: str) -> None:
    """Raise DataError for an array that claims another size than it has: memory is allocated before it is read."""
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    entry = archive.getinfo(f"{name}.npy")
    with archive.open(entry) as file:
        version = np.lib.format.read_magic(file)
        if version not in readers:
            raise DataError(f"{path}: {name} are in version {version} of .npy, for tables; wanted an array of numbers")
        shape, _, dtype = readers[version](file)
        stored = entry.file_size - file.tell()
    claimed = math.prod(shape) * dtype.itemsize
    if claimed != stored and not dtype.hasobject:
        raise DataError(
            f"{path}: {name} claim {claimed:,} bytes, {list(shape)} of {dtype}, and have {stored:,}; write it again"
        )


def _array_of(path: Path, archive: Any, name: str) -> Any:
    """Return an array of an archive; DataError for Python objects, whose loading may run a program."""
    try:
        return archive[name]
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        raise DataError(
            f"{path}: {name} are Python objects, which are not loaded, as that may run a program; save numbers, or "
            f"texts as numpy.array({name}, dtype=str)"
        ) from None


def _read_parquet(path: Path) -> Columns:
    with parquet_of(path) as parquet:
        names = parquet.read_schema(path).names
        read = parquet.read_table(path, columns=_used(names), use_threads=True)
        return {name: _column(path, name, read[name]) for name in read.column_names}, _unused(names)


def _column(path: Path, name: str, column: Any) -> Any:
    """Return a column of a Parquet table as an array, ``[N, D]`` for lists of equal length."""
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
    lengths = sorted(compute.unique(compute.list_value_length(column)).to_pylist())
    if len(lengths) > 1:
        raise DataError(f"{path}: {name} are lists of {lengths[0]} to {lengths[-1]} numbers; wanted one length")
    if not lengths:
        return np.empty((0, 0), dtype=np.float32)
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
    except (OSError, ValueError, SafetensorError) as error:
        raise _unreadable(path, error) from None
    for name in _used(texts):
        if name in columns:
            raise DataError(f"{path}: {name} are a tensor, and a list in the metadata; delete one")
        try:
            columns[name] = json.loads(texts[name])
        except ValueError:
            raise DataError(f"{path}: {name} of the metadata are no JSON; wanted a list of texts") from None
    return columns, _unused(names)


_READERS = {".npz": _read_npz, ".parquet": _read_parquet, ".safetensors": _read_safetensors}


def _used(names: Iterable[str]) -> list[str]:
    return [name for name in names if name in KEYS]


def _unused(names: Iterable[str]) -> list[str]:
    return [name for name in names if name not in KEYS]


def _unreadable(path: Path, error: Exception) -> DataError:
    kind = path.suffix.lower()
    return DataError(f"{path}: cannot be read as a {kind} file ({shortened(one_line(error), 200)}); write it again")


def _checked_embeddings(path: Path, column: Any) -> NDArray[np.float32]:
    """Return vectors ``[N, D]`` as float32; DataError for another shape, or for what are no numbers."""
    array = np.asarray(column)
    if array.dtype.kind not in "fiu":
        raise DataError(f"{path}: embeddings are of the type {array.dtype}; wanted numbers, [N, D]")
    if array.ndim != 2 or 0 in array.shape:
        raise DataError(f"{path}: embeddings have the shape {list(array.shape)}; wanted [N, D], a vector in each row")
    with np.errstate(over="ignore"):  # becomes infinite, which is an error
        vectors: NDArray[np.float32] = np.require(array, np.float32, ["C", "W"])  # arrays of pyarrow are read-only
    return vectors


def _check_finite(path: Path, embeddings: NDArray[np.float32], ids: Texts) -> None:
    """Raise DataError for vectors with NaN or infinity; say how many, and the first."""
    bad = []
    for start in range(0, len(embeddings), _BLOCK):
        finite = np.isfinite(embeddings[start : start + _BLOCK]).all(axis=1)
        bad.append(start + np.flatnonzero(~finite))
    rows = np.concatenate(bad)
    if len(rows):
        raise DataError(
            f"{path}: {len(rows)} of {len(embeddings)} vectors have NaN or infinity, row {rows[0]} ({ids[rows[0]]}) "
            "first; leave these rows out"
        )


def _texts(path: Path, name: str, column: Any, count: int) -> Texts:
    """Return integers or texts as texts, ``[N]``; DataError for another type or length."""
    try:
        array = np.asarray(column)
    except ValueError:  # lists of different lengths
        raise DataError(f"{path}: {name} are lists of lists; wanted [{count}], one for each embedding") from None
    if array.shape != (count,):
        raise DataError(f"{path}: {name} have the shape {list(array.shape)}; wanted [{count}], one for each embedding")
    if array.dtype.kind in "iu":
        return array.astype(str)
    if array.dtype.kind == "U":
        return _checked_texts(path, name, array)
    if array.dtype.kind == "S":
        try:
            return np.char.decode(array, "utf-8")
        except UnicodeDecodeError:
            raise DataError(f"{path}: {name} are bytes that are no UTF-8; wanted texts or integers") from None
    hint = f": {name}.astype(int), or {name}.astype(str)" if array.dtype.kind in "fb" else ""
    raise DataError(f"{path}: {name} are of the type {array.dtype}; wanted integers or texts{hint}")


def _checked_texts(path: Path, name: str, texts: Texts) -> Texts:
    """Return texts; DataError for one with half of a surrogate pair, which no file or database can keep."""
    try:
        "".join(texts.tolist()).encode()
    except UnicodeEncodeError:
        raise DataError(
            f"{path}: {name} have texts that are no Unicode (half a surrogate pair); write them again"
        ) from None
    return texts


def _are_missing(texts: Texts) -> NDArray[np.bool_]:
    """Return which texts are no value, as numpy writes NaN and None of pandas: ``[N]``."""
    return np.isin(texts, ("", "nan", "None", "<NA>"))


def _labels(path: Path, column: Any, count: int) -> tuple[NDArray[np.int64], list[str]]:
    """Return the number of each vector's class, and the names of the classes, in the order of numbers or of texts."""
    given = column
    if getattr(column, "shape", None) != (count,) or column.dtype.kind not in "iu":
        given = _texts(path, "labels", column, count)
        empty = np.flatnonzero(_are_missing(given))
        if len(empty):
            raise DataError(
                f"{path}: {counted(len(empty), 'label')} of {count} are empty, row {empty[0]} first, "
                f"{str(given[empty[0]])!r}; leave these rows out"
            )
        given = np.array([composed(name) for name in given.tolist()])
    values, numbers = np.unique(given, return_inverse=True)
    return numbers.astype(np.int64), [str(value) for value in values.tolist()]


def _check_ids(path: Path, ids: Texts) -> None:
    """Raise DataError for an id that is empty, or that two vectors have."""
    empty = np.flatnonzero(ids == "")
    if len(empty):
        raise DataError(f"{path}: {counted(len(empty), 'id')} of {len(ids)} are empty, row {empty[0]} first")
    if len(set(ids.tolist())) == len(ids):
        return
    _, firsts, counts = np.unique(ids, return_index=True, return_counts=True)
    repeated = counts > 1
    id = ids[firsts[repeated].min()]
    rows = np.flatnonzero(ids == id)
    raise DataError(
        f"{path}: {counted(int(repeated.sum()), 'id')} of several vectors, {str(id)!r} first, of the rows {rows[0]} "
        f"and {rows[1]}; wanted an id of its own for each"
    )


def _check_split(path: Path, split: Texts | None) -> None:
    """Raise DataError for an unknown part, or if no vector is to train or to test."""
    if split is None:
        return
    unknown_rows = np.flatnonzero(~np.isin(split, PARTS))
    if len(unknown_rows):
        row = unknown_rows[0]
        raise DataError(f"{path}: split of row {row}: {unknown('part', str(split[row]), PARTS)}")
    for part in ("train", "test"):
        if not (split == part).any():
            found = ", ".join(sorted(set(split.tolist())))
            raise DataError(f"{path}: split has no {part!r}; found {found}; wanted train and test, maybe validation")
