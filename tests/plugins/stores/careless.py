"""A store that keeps the interface, and careless ones, each with one fault."""

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


class Forgets(Lines):
    def save(self):
        pass


class WritesNothing(Lines):
    def write(self, rows):
        pass


class WritesFirst(Lines):
    def write(self, rows):
        super().write([next(iter(rows))])


class Appends(Lines):
    def write(self, rows):
        super().write(batch._replace(ids=batch.ids + 1000 * len(self.rows)) for batch in rows)


class HidesErrors(Lines):
    def write(self, rows):
        try:
            super().write(rows)
        except Exception:
            print("never mind")


class ChangesErrors(Lines):
    def write(self, rows):
        try:
            super().write(rows)
        except Exception as error:
            raise KeyError("rows") from error


class LosesBefore(Lines):
    def write(self, rows):
        rows = iter(rows)
        first = next(rows, None)
        if first is not None:
            kept = self.rows
            self.rows = {}
            super().write([first])
            for batch in rows:
                super().write([batch])
            self.rows = kept | self.rows


class DeletesNothing(Lines):
    def delete(self, ids):
        pass


class DeletesKnown(Lines):
    def delete(self, ids):
        for id in ids:
            del self.rows[id]


class NoCount(Lines):
    def count(self):
        return None


class NoChecksums(Lines):
    def checksums(self):
        return None


class TextChecksums(Lines):
    def checksums(self):
        return {str(id): checksum for id, checksum in super().checksums().items()}


class FindsNothing(Lines):
    def search(self, vectors, k, where):
        return None


class FindsFewer(Lines):
    def search(self, vectors, k, where):
        return super().search(vectors, k, where)[:-1]


class Pairs(Lines):
    def nearest(self, vector, k, where):
        return [(result.id, result.distance) for result in super().nearest(vector, k, where)]


class FindsAll(Lines):
    def nearest(self, vector, k, where):
        return super().nearest(vector, 10**6, where)


class FarthestFirst(Lines):
    def nearest(self, vector, k, where):
        return super().nearest(vector, k, where)[::-1]


class NotTheNearest(Lines):
    def nearest(self, vector, k, where):
        return super().nearest(vector, k + 3, where)[3:]


class NotANumber(Lines):
    def nearest(self, vector, k, where):
        return [result._replace(distance=float("nan")) for result in super().nearest(vector, k, where)]


class Squared(Lines):
    def nearest(self, vector, k, where):
        return [result._replace(distance=result.distance**2) for result in super().nearest(vector, k, where)]


class UnknownIds(Lines):
    def nearest(self, vector, k, where):
        return [result._replace(id=result.id + 10**6) for result in super().nearest(vector, k, where)]


class OtherPaths(Lines):
    def nearest(self, vector, k, where):
        return [result._replace(path=result.path.upper()) for result in super().nearest(vector, k, where)]


class AnyClass(Lines):
    def nearest(self, vector, k, where):
        return super().nearest(vector, k, where._replace(within=None))


class AnyRadius(Lines):
    def nearest(self, vector, k, where):
        return super().nearest(vector, k, where._replace(radius=None))
