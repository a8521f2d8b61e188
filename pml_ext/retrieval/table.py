"""The table of an index: path, class, size, time and id of every image, in an Arrow file that is mapped into memory.

Of a million images, those are read that are asked for. A path is bytes, as on the disk, since names need not be text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from ..errors import needs_extra
from .checks import reason_of
from .embedding import Embedded, class_of
from .parts import UnfitError

Numbers = NDArray[np.int64]
UNKNOWN = -1  # the size and the time of an image of which they are not known
_COLUMNS = ("path", "class", "size", "time", "id", "order")


def is_inside(name: str) -> bool:
    """Whether a path of an index stays in the folder that was indexed."""
    return bool(name) and not name.startswith("/") and not {"..", ""} & set(name.split("/")) and "\0" not in name


class Texts(Sequence[str]):
    """Texts that are read when they are asked for; equal to a list of the same ones.

    Args:
        length: how many.
        one: reads one.
    """

    def __init__(self, length: int, one: Callable[[int], str]) -> None:
        self._length, self._one = length, one

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self._one(number) for number in range(*index.indices(self._length))]
        number = index + self._length if index < 0 else index
        if not 0 <= number < self._length:
            raise IndexError(f"number {index} of {self._length}")
        return self._one(number)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (Texts, list, tuple)):
            return NotImplemented
        return len(self) == len(other) and all(one == two for one, two in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        more = ", ..." if self._length > 3 else ""
        return f"<{self._length} texts: {', '.join(map(repr, self[:3]))}{more}>"


class Paths(Texts):
    """Paths of an index, of which one is sought in as many steps as its number has digits in base 2.

    Args:
        offsets: where each begins among the bytes, and where the last ends, ``[N + 1]``.
        content: the bytes of all.
        order: the numbers of the paths, sorted by their bytes, ``[N]``.
        refused: the error of a path that leaves the indexed folder.
    """

    def __init__(self, offsets: Numbers, content: Any, order: Numbers, refused: Callable[[str], Exception]) -> None:
        super().__init__(len(offsets) - 1, self._read)
        self._offsets, self._content, self._order, self._refused = offsets, content, order, refused

    def bytes_of(self, number: int) -> bytes:
        """A path as it is on the disk."""
        return bytes(self._content[max(0, self._offsets[number]) : max(0, self._offsets[number + 1])])

    def _read(self, number: int) -> str:
        name = self.bytes_of(number).decode("utf-8", "surrogateescape")
        if not is_inside(name):
            raise self._refused(name)
        return name

    def index(self, value: Any, start: int = 0, stop: int | None = None) -> int:
        """The number of a path.

        Raises:
            ValueError: there is none.
        """
        sought, low, high = str(value).encode("utf-8", "surrogateescape"), 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self.bytes_of(self._number(middle)) < sought:
                low = middle + 1
            else:
                high = middle
        if low < len(self):
            number = self._number(low)
            if self.bytes_of(number) == sought and start <= number < (len(self) if stop is None else stop):
                return number
        raise ValueError(f"no path {value!r}")

    def __contains__(self, value: object) -> bool:
        try:
            return isinstance(value, str) and self.index(value) >= 0
        except ValueError:
            return False

    def _number(self, place: int) -> int:
        return min(max(0, int(self._order[place])), len(self) - 1)

    def all_bytes(self) -> Iterator[bytes]:
        """All paths as they are on the disk."""
        return map(self.bytes_of, range(len(self)))


@dataclasses.dataclass(frozen=True)
class Table:
    """What an index knows of its images.

    Args:
        paths: relative to the indexed folder, ``[N]``.
        class_names: those that there are.
        class_numbers: the class of each image, ``[N]``.
        sizes: in bytes, ``[N]``; -1 where it is not known.
        times: of modification, in nanoseconds since 1970, ``[N]``; -1 where it is not known.
        ids: of the images; an image keeps its id while its path stays, and no id is used again, ``[N]``.
    """

    paths: Paths
    class_names: list[str]
    class_numbers: NDArray[np.int32]
    sizes: Numbers
    times: Numbers
    ids: Numbers

    @property
    def classes(self) -> Texts:
        """The class of each image."""
        last = len(self.class_names) - 1
        return Texts(len(self.paths), lambda number: self.class_names[min(max(0, self.class_numbers[number]), last)])


def write_table(path: Path, embedded: Embedded, ids: Numbers) -> None:
    """Writes a table.

    Args:
        path: the file.
        embedded: the images.
        ids: of these.
    """
    pa = arrow()
    from pyarrow import compute

    paths = pa.array([name.encode("utf-8", "surrogateescape") for name in embedded.paths], pa.large_binary())
    names: dict[str, int] = {}
    numbers = np.array([names.setdefault(class_of(path), len(names)) for path in embedded.paths], dtype=np.int32)
    classes = pa.DictionaryArray.from_arrays(
        pa.array(numbers), pa.array([name.encode("utf-8", "surrogateescape") for name in names], pa.large_binary())
    )
    unknown = np.full(len(ids), UNKNOWN, dtype=np.int64)
    sizes = unknown if embedded.sizes is None else embedded.sizes
    times = unknown if embedded.times is None else embedded.times
    order = compute.array_sort_indices(paths).cast(pa.int64())
    columns = [paths, classes, *(pa.array(each, pa.int64()) for each in (sizes, times, ids)), order]
    batch = pa.record_batch(columns, names=[*_COLUMNS])
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)


def read_table(path: Path, refused: Callable[[str], Exception]) -> Table:
    """Maps a table into memory; of its content nothing is read.

    Args:
        path: the file.
        refused: as of :class:`Paths`.

    Raises:
        UnfitError: it is no table of an index.
    """
    pa = arrow()
    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        if reader.num_record_batches != 1 or tuple(reader.schema.names) != _COLUMNS:
            raise ValueError(f"columns {', '.join(reader.schema.names)}")
        batch = reader.get_batch(0)
        batch.validate()
        paths, classes = batch.column(0), batch.column(1)
        if paths.type != pa.large_binary() or not pa.types.is_dictionary(classes.type) or batch.num_rows < 1:
            raise ValueError(f"paths of {paths.type}, classes of {classes.type}, {batch.num_rows} rows")
        if any(batch.column(place).type != pa.int64() for place in (2, 3, 4, 5)):
            raise ValueError("numbers of another type")
        # by their buffers: pyarrow's own way to numpy imports pandas
        numbers = [np.frombuffer(batch.column(place).buffers()[1], np.int64, batch.num_rows) for place in (2, 3, 4, 5)]
        offsets, content = paths.buffers()[1:]
        ends = np.frombuffer(offsets, np.int64, batch.num_rows + 1)
        return Table(
            Paths(ends, memoryview(content or b""), numbers[3], refused),
            [name.decode("utf-8", "surrogateescape") for name in classes.dictionary.to_pylist()],
            np.frombuffer(classes.indices.buffers()[1], np.int32, batch.num_rows),
            *numbers[:3],
        )
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise UnfitError(f"{path}: empty, cut or no table of images ({reason_of(error)})") from None


@dataclasses.dataclass(frozen=True)
class Changes:
    """What a new index has that the one before it had not.

    Args:
        new: images that were not there.
        changed: images of another size or time than before.
        gone: images that are no longer there.
        same: images as before.
    """

    new: int
    changed: int
    gone: int
    same: int

    def __str__(self) -> str:
        return f"{self.new:,} new, {self.changed:,} changed, {self.gone:,} gone, {self.same:,} as before"


def compared(table: Table, embedded: Embedded) -> tuple[Numbers, Changes]:
    """What is new in a folder.

    Args:
        table: of the index before.
        embedded: the images that there are now.

    Returns:
        The id of each image that the old table has, -1 for others, and the counts.
    """
    pa = arrow()
    from pyarrow import compute

    old = pa.array(table.paths.all_bytes(), pa.large_binary())
    now = pa.array([name.encode("utf-8", "surrogateescape") for name in embedded.paths], pa.large_binary())
    row = compute.fill_null(compute.index_in(now, value_set=old), UNKNOWN).to_numpy(zero_copy_only=False)
    known = row >= 0
    ids = np.where(known, table.ids[row], UNKNOWN)
    changed = np.zeros(len(row), dtype=bool)
    if embedded.sizes is not None and embedded.times is not None:
        changed = known & ((embedded.sizes != table.sizes[row]) | (embedded.times != table.times[row]))
    same = int(known.sum())
    counts = Changes(len(row) - same, int(changed.sum()), len(table.paths) - same, same - int(changed.sum()))
    return ids.astype(np.int64), counts


def arrow() -> Any:
    """The package pyarrow."""
    with needs_extra("train", "an index"):
        import pyarrow as pa
        import pyarrow.ipc
    return pa
