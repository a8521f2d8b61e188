"""Checked stores: errors name the store, its plugin and the method."""

import contextlib
import math
import sys
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from pml_ext import registry
from pml_ext.errors import PluginError, PmlExtError, counted, one_line, shortened
from pml_ext_train.retrieval import Rows, SearchFilter, SearchResult, Store, Vectors

METHODS = ("write", "search", "delete", "count", "checksums")
TOLERANCE = 1e-4  # of distances between vectors of length 1 that a store computes in float32


class CheckedStore:
    """A store whose answers are checked; what it prints goes to stderr."""

    def __init__(self, store: Store, owner: str) -> None:
        self._store = store
        self._owner = owner

    def write(self, rows: Iterable[Rows]) -> None:
        """Insert batches of images, replacing those with the same ids."""
        with _guarded(f"write of {self._owner}"):
            self._store.write(rows)

    def search(self, vectors: Vectors, k: int, where: SearchFilter) -> list[list[SearchResult]]:
        """Up to k images for each vector, nearest first."""
        with _guarded(f"search of {self._owner}"):
            answer = self._store.search(vectors.copy(), k, where)
        if not _is_list(answer) or len(answer) != len(vectors):
            found = counted(len(answer), "list") if _is_list(answer) else shortened(repr(answer), 100)
            raise self._error("search", f"{found} for {counted(len(vectors), 'vector')}", "a list for each vector")
        return [self._checked_results(results, k, where) for results in answer]

    def _checked_results(self, results: Any, k: int, where: SearchFilter) -> list[SearchResult]:
        if not _is_list(results):
            raise self._error("search", f"{shortened(repr(results), 100)} for a vector", "a list of SearchResult")
        if len(results) > k:
            raise self._error("search", f"{counted(len(results), 'image')} for a vector", f"at most k = {k}")
        distance = 0.0
        kept = []
        for result in results:
            if not _is_result(result):
                raise self._error(
                    "search",
                    shortened(repr(result), 100),
                    "SearchResult(id, path, class_name, distance) with a finite distance",
                )
            if result.distance < distance - TOLERANCE:
                raise self._error(
                    "search", f"the distance {result.distance:.6g} after {distance:.6g}", "the nearest image first"
                )
            distance = result.distance
            if where.within is not None and result.class_name != where.within:
                raise self._error(
                    "search",
                    f"an image of the class {result.class_name!r} within {where.within!r}",
                    "images of the class alone",
                )
            if where.radius is not None and distance > where.radius + TOLERANCE:
                raise self._error(
                    "search",
                    f"an image at the distance {distance:.6g} for the radius {where.radius:.6g}",
                    "no image beyond it",
                )
            kept.append(SearchResult(int(result.id), result.path, result.class_name, float(distance)))
        return kept

    def delete(self, ids: Sequence[int]) -> None:
        """Delete images; ignore unknown ids."""
        with _guarded(f"delete of {self._owner}"):
            self._store.delete(ids)

    def count(self) -> int:
        """The number of images."""
        with _guarded(f"count of {self._owner}"):
            answer = self._store.count()
        if not isinstance(answer, Integral) or answer < 0:
            raise self._error("count", shortened(repr(answer), 100), "the number of images")
        return int(answer)

    def checksums(self) -> Mapping[int, int]:
        """The checksum of each image by its id."""
        with _guarded(f"checksums of {self._owner}"):
            answer = self._store.checksums()
        if not isinstance(answer, Mapping):
            raise self._error("checksums", shortened(repr(answer), 100), "a mapping from ids to checksums")
        for id, checksum in answer.items():
            if not isinstance(id, Integral) or not isinstance(checksum, Integral):
                raise self._error(
                    "checksums", shortened(repr({id: checksum}), 100), "whole numbers, as they were written"
                )
        return answer

    def check_count(self, wanted: int) -> None:
        """Raise PluginError unless the store has this number of images."""
        found = self.count()
        if found != wanted:
            raise PluginError(
                f"{self._owner} has {counted(found, 'image')} after write and delete, of {wanted} in the index: its "
                "write, delete or count is wrong, or another program writes into the table"
            )

    def check_ids(self, found: Iterable[int], known: Container[int]) -> None:
        """Raise PluginError for an id that was never written."""
        for id in found:
            if id not in known:
                raise self._error("search", f"the id {id}", "an id that was written and not deleted")

    def check_distances(self, found: Sequence[float], exact: Sequence[float]) -> None:
        """Raise PluginError unless the store's distances are exact."""
        for one, other in zip(found, exact, strict=True):
            if not math.isclose(one, other, rel_tol=0.01, abs_tol=0.01):
                raise self._error(
                    "search",
                    f"the distance {one:.4g} between vectors that are {other:.4g} apart",
                    "Euclidean distances",
                )

    def _error(self, method: str, found: str, wanted: str) -> PluginError:
        return PluginError(f"{method} of {self._owner} returned {found}; wanted {wanted}")


def open_checked(scheme: str, address: str, table: str, size: int) -> CheckedStore:
    """Open a table of the store of a scheme, ``"lancedb"`` or ``"entry-point:lancedb"``."""
    plugin, factory = registry.find("store", scheme)
    return checked(factory, (address, table, size), f"the store {scheme!r} of the plugin {plugin!r}")


def checked(factory: Callable[..., Any], arguments: tuple[str, str, int], owner: str) -> CheckedStore:
    """The store of a factory; ``owner`` names it in errors. PluginError if it lacks a method."""
    with _guarded(f"opening {owner}"):
        store = factory(*arguments)
    missing = [method for method in METHODS if not callable(getattr(store, method, None))]
    if missing:
        raise PluginError(
            f"{owner} is a {type(store).__name__} without the method {' and '.join(missing)}; wanted the methods of "
            "pml_ext.plugin.Store"
        )
    return CheckedStore(store, owner)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _is_result(value: Any) -> bool:
    distance: Any = getattr(value, "distance", None)
    is_distance = isinstance(distance, Real) and math.isfinite(distance) and float(distance) >= 0
    texts = isinstance(getattr(value, "path", None), str) and isinstance(getattr(value, "class_name", None), str)
    return is_distance and texts and isinstance(getattr(value, "id", None), Integral)


@contextlib.contextmanager
def _guarded(call: str) -> Iterator[None]:
    """Send what a store prints to stderr, and name the store in its errors."""
    output: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    if threading.current_thread() is threading.main_thread():  # two threads would put back each other's sys.stdout
        output = contextlib.redirect_stdout(sys.stderr)
    try:
        with output:
            yield
    except PmlExtError:  # has a text for the user
        raise
    except (Exception, SystemExit) as error:
        origin = registry.origin_of(error)
        place = f", in {origin.place}" if origin is not None else ""
        raise PluginError(f"{call} failed: {one_line(error)}{place}") from error
