"""The contract of stores, which ``pml-ext check`` tries with made-up images."""

import gc
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pml_ext.errors import ConfigError, DataError, MissingExtraError, PluginError, one_line, shortened
from pml_ext.testing import Named, SkipCheck, requires_no_options, takes_arguments
from pml_ext_train.retrieval import Rows, SearchFilter

from .validation import TOLERANCE, CheckedStore, checked

_IMAGES = 40
_SIZE = 8
_K = 10
_CLASSES = ("cats", 'd\'or "é"', "")  # of the made-up images, in turn; a quote is no part of a query's language
_FILTERS = (SearchFilter(), SearchFilter("cats"), SearchFilter(_CLASSES[1], 1.2), SearchFilter(None, 1.0))


class AddressError(DataError):
    """An address at which a store opens no table."""


def check_in_folder(named: Named) -> str:
    """Check a store in a temporary folder; SkipCheck for a store that needs a server."""
    takes_arguments(named.value, "address", "table", "size")
    requires_no_options(named.value, positions=3)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        address = str(Path(folder) / "store")
        try:
            return check_contract(named.value, address)
        except MissingExtraError as error:
            raise SkipCheck(str(error)) from None
        except AddressError as error:
            reason = shortened(str(error).replace(address, "FOLDER"), 200)
            raise SkipCheck(
                f"it opens no table in a folder ({reason}); in a test with its server, call "
                "pml_ext_stores.contract.check_contract(factory, address)"
            ) from None
        except PluginError as error:  # about an answer
            raise AssertionError(str(error)) from error


def check_contract(factory: Callable[..., Any], address: str) -> str:
    """Write, search, replace, delete and reopen made-up images; return what was tried.

    The tables ``pml_ext_check`` and ``pml_ext_check_other`` of ``address`` must be new. PluginError for a breach of the
    interface, AddressError if nothing can be opened; other errors are the store's own.
    """
    images = _made_up(_IMAGES, first=0, seed=0)
    others = _made_up(10, first=35, seed=1)  # five of the images with other vectors and checksums, and five new ones

    try:
        store = _opened(factory, address, "pml_ext_check")
        _check_held(store, {}, "before the first write")
    except (ConfigError, DataError) as error:
        raise AddressError(str(error)) from error
    if any(store.search(images.vectors[:2], _K, SearchFilter())):
        raise PluginError("search finds an image before the first write; wanted an empty list for each vector")

    _write(store, [_part(images, 0, 25), _part(images, 25, _IMAGES)])
    held = _by_id(images)
    _check_held(store, held, "after the write of two batches")
    _check_searches(store, held)

    _write(store, [others])
    held |= _by_id(others)
    _check_held(store, held, "after images were written again, which replaces them")
    _check_stopped_write(store, held)

    store.delete([0, 1, 999])
    store.delete([])
    del held[0], held[1]
    _check_held(store, held, "after delete([0, 1, 999]), where 999 is unknown")
    _check_searches(store, held)

    del store
    gc.collect()  # a database that one object at a time may open
    store = _opened(factory, address, "pml_ext_check_other")
    _check_held(store, {}, "in a table of another name; each state of a network has its own")
    del store
    gc.collect()
    store = _opened(factory, address, "pml_ext_check")
    _check_held(store, held, "opened once more")
    _check_searches(store, held)
    store.delete(sorted(held))
    _check_held(store, {}, "after all images were deleted")
    return f"{_IMAGES} made-up images written, searched, replaced, deleted and reopened"


def _opened(factory: Callable[..., Any], address: str, table: str) -> CheckedStore:
    return checked(factory, (address, table, _SIZE), "the store")


def _made_up(count: int, first: int, seed: int) -> Rows:
    points = np.random.default_rng(seed).standard_normal((count, _SIZE)).astype(np.float32)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    ids = np.arange(first, first + count)
    classes = [_CLASSES[id % len(_CLASSES)] for id in ids]
    paths = [f"{name or 'none'}/{id}.jpg" for id, name in zip(ids, classes, strict=True)]
    return Rows(ids, 2**32 - 1 - 7 * ids - seed, paths, classes, points)


def _part(rows: Rows, start: int, end: int) -> Rows:
    return Rows(
        rows.ids[start:end].copy(),
        rows.checksums[start:end].copy(),
        rows.paths[start:end],
        rows.classes[start:end],
        rows.vectors[start:end].copy(),
    )


def _by_id(rows: Rows) -> dict[int, tuple[int, str, str, Any]]:
    columns = (rows.checksums.tolist(), rows.paths, rows.classes, rows.vectors)
    return dict(zip(rows.ids.tolist(), zip(*columns, strict=True), strict=True))


def _write(store: CheckedStore, batches: list[Rows]) -> None:
    read: list[Rows] = []

    def each() -> Iterator[Rows]:
        for batch in batches:
            read.append(batch)
            yield _part(batch, 0, len(batch.ids))

    store.write(each())
    if len(read) != len(batches):
        raise PluginError(f"write reads {len(read)} of {len(batches)} batches; wanted all")


def _check_held(store: CheckedStore, held: dict[int, Any], when: str) -> None:
    count = store.count()
    if count != len(held):
        raise PluginError(f"count() is {count} {when}; wanted {len(held)}")
    checksums = dict(store.checksums())
    wanted = {id: image[0] for id, image in held.items()}
    if checksums != wanted:
        differing = sorted(id for id in checksums.keys() | wanted.keys() if checksums.get(id) != wanted.get(id))
        id = differing[0]
        raise PluginError(
            f"checksums() has {checksums.get(id)} for the image {id} {when}; wanted {wanted.get(id)} "
            f"({len(differing)} of {len(wanted)} differ)"
        )


def _check_searches(store: CheckedStore, held: dict[int, Any]) -> None:
    queries = _made_up(3, first=0, seed=2).vectors
    for where in _FILTERS:
        for query, found in zip(queries, store.search(queries.copy(), _K, where), strict=True):
            wanted = _nearest(held, query, where)
            store.check_ids([result.id for result in found], held)
            exact = [float(np.linalg.norm(held[result.id][3] - query)) for result in found]
            store.check_distances([result.distance for result in found], exact)
            if len(found) != len(wanted) or any(np.array(exact) > np.array(wanted) + TOLERANCE):
                raise PluginError(
                    f"search with {where} finds images at {np.round(exact, 4).tolist()}; the nearest ones are at "
                    f"{np.round(wanted, 4).tolist()}"
                )
            for result in found:
                _, path, class_name, _ = held[result.id]
                if (result.path, result.class_name) != (path, class_name):
                    raise PluginError(
                        f"search returns path and class {(result.path, result.class_name)} of the image {result.id}; "
                        f"wanted {(path, class_name)}"
                    )


def _nearest(held: dict[int, Any], query: Any, where: SearchFilter) -> list[float]:
    distances = []
    for _, _, class_name, vector in held.values():
        distance = float(np.linalg.norm(vector - query))
        is_near = where.radius is None or distance <= where.radius
        if is_near and where.within in (None, class_name):
            distances.append(distance)
    return sorted(distances)[:_K]


def _check_stopped_write(store: CheckedStore, held: dict[int, Any]) -> None:
    """Fail if a store hides an error of a later batch, or loses earlier images."""

    def stopped() -> Iterator[Rows]:
        yield _made_up(1, first=35, seed=1)  # equal to the stored row
        raise DataError("the reading of images was stopped")

    try:
        store.write(stopped())
    except DataError:
        pass
    except Exception as error:
        raise PluginError(
            f"an error while batches are read becomes {one_line(error)}; wanted the same error, which says what to do"
        ) from error
    else:
        raise PluginError("write returns although reading the batches failed; wanted the error")
    lost = held.keys() - dict(store.checksums()).keys()
    if lost:
        raise PluginError(f"a write that is stopped loses {len(lost)} images that were written before; wanted all kept")
