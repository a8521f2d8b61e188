"""A store that keeps the interface, and careless ones, each with one fault."""

import contextlib
import functools
import json
from pathlib import Path

import numpy as np

from pml_ext.plugin import SearchResult


class Lines:
    """Images as JSON in a file of a folder, searched by a loop."""

    def __init__(self, address, table, size):
        self.file = Path(address) / f"{table}.json"
        self.rows = {}
        if self.file.exists():
            self.rows = {int(id): row for id, row in json.loads(self.file.read_text()).items()}

    def save(self):
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps(self.rows))

    def write(self, rows):
        for batch in rows:
            columns = (batch.checksums.tolist(), batch.paths, batch.classes, batch.vectors.tolist())
            self.rows |= dict(zip(batch.ids.tolist(), zip(*columns, strict=True), strict=True))
            self.save()

    def search(self, vectors, k, where):
        return [self.nearest(vector, k, where) for vector in vectors]

    def nearest(self, vector, k, where):
        found = []
        for id, (_, path, name, row) in self.rows.items():
            distance = float(np.linalg.norm(np.array(row, dtype=np.float32) - vector))
            is_near = where.radius is None or distance <= where.radius
            if is_near and where.within in (None, name):
                found.append(SearchResult(id, path, name, distance))
        return sorted(found, key=lambda result: result.distance)[:k]

    def delete(self, ids):
        for id in ids:
            self.rows.pop(id, None)
        self.save()

    def count(self):
        return len(self.rows)

    def checksums(self):
        return {id: row[0] for id, row in self.rows.items()}


class Prints(Lines):
    def search(self, vectors, k, where):
        print("searching ...")
        vectors[:] = 0 * vectors + vectors  # in place
        return super().search(vectors, k, where)


class OneTable(Lines):
    def __init__(self, address, table, size):
        super().__init__(address, "the", size)


class HidesErrors(Lines):
    def write(self, rows):
        with contextlib.suppress(Exception):
            super().write(rows)


class ChangesErrors(Lines):
    def write(self, rows):
        try:
            super().write(rows)
        except Exception as error:
            raise KeyError("rows") from error


class LosesBefore(Lines):
    def write(self, rows):
        kept = self.rows
        self.rows = {}
        super().write(rows)
        self.rows = kept | self.rows


class DeletesKnown(Lines):
    def delete(self, ids):
        for id in ids:
            del self.rows[id]


def careless(name, method):
    """A store with one method replaced; the replacement gets the original in place of ``self``."""

    def called(self, *arguments):
        return method(functools.partial(getattr(Lines, name), self), *arguments)

    return type("Careless", (Lines,), {name: called})


Forgets = careless("save", lambda save: None)
WritesNothing = careless("write", lambda write, rows: None)
WritesFirst = careless("write", lambda write, rows: write([next(iter(rows))]))
Appends = careless(
    "write",
    lambda write, rows: write(batch._replace(ids=batch.ids + 1000 * number) for number, batch in enumerate(rows)),
)
DeletesNothing = careless("delete", lambda delete, ids: None)
NoCount = careless("count", lambda count: None)
NoChecksums = careless("checksums", lambda checksums: None)
TextChecksums = careless("checksums", lambda checksums: {str(id): checksum for id, checksum in checksums().items()})
FindsNothing = careless("search", lambda search, *given: None)
FindsFewer = careless("search", lambda search, *given: search(*given)[:-1])
Pairs = careless("nearest", lambda nearest, *given: [(result.id, result.distance) for result in nearest(*given)])
FindsAll = careless("nearest", lambda nearest, vector, k, where: nearest(vector, 10**6, where))
FarthestFirst = careless("nearest", lambda nearest, *given: nearest(*given)[::-1])
NotTheNearest = careless("nearest", lambda nearest, vector, k, where: nearest(vector, k + 3, where)[3:])
AnyClass = careless("nearest", lambda nearest, vector, k, where: nearest(vector, k, where._replace(within=None)))
AnyRadius = careless("nearest", lambda nearest, vector, k, where: nearest(vector, k, where._replace(radius=None)))


def changed(change):
    """A store whose results are changed, each by itself."""
    return careless(
        "nearest", lambda nearest, *given: [result._replace(**change(result)) for result in nearest(*given)]
    )


NotANumber = changed(lambda result: {"distance": float("nan")})
Squared = changed(lambda result: {"distance": result.distance**2})
UnknownIds = changed(lambda result: {"id": result.id + 10**6})
OtherPaths = changed(lambda result: {"path": result.path.upper()})
