"""An index on the disk: parts with names of their own, and ``index.json``, which is written last and names them.

Until ``index.json`` is replaced, in one step, the old index stands; from then on the new one does. It has the sizes and
the sums of all parts (see :mod:`.parts`), so that parts that do not belong together are noticed. Parts that it does not
name are left-overs, which the next index removes. The parts are:

- ``embeddings-*.npy``, ``[N, D]``, float32, of length 1, row after row, as numpy maps it into memory;
- ``images-*.arrow``, a table of paths, classes, sizes, times and ids (see :mod:`.table`);
- ``faiss-*.faiss``, where faiss searches.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import re
import secrets
import shlex
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from ..errors import DataError, shortened
from ..files import alone_in, unsealed, write_json, writing
from .checks import RetrievalWarning, reason_of
from .embedding import Embedded
from .faiss_index import FaissIndex
from .parts import Part, UnfitError, check_part, write_part
from .table import UNKNOWN, Changes, Numbers, Table, compared, is_inside, read_table, write_table

INDEX = "index"  # the folder in a run's folder that `pml-ext index` writes by default
ABOUT = "index.json"
LAYOUT = 3  # of the parts; before, embeddings and paths were in one .npz
_OLD_PARTS = ("embeddings.npz", "index.faiss")  # of an index without checksums, as the first versions wrote it
_LEFT_OVER = re.compile(
    r"(embeddings-[0-9a-f]{16}\.np[yz]|images-[0-9a-f]{16}\.arrow|faiss-[0-9a-f]{16}\.faiss"
    r"|\.(embeddings\.npz|index\.faiss|index\.json)\.\d+\.tmp)"
)
_ROWS = 1 << 16  # that are looked at a time


@dataclasses.dataclass(frozen=True)
class IndexedImages(Embedded):
    """Images of an index that was read; of the embeddings and paths on the disk, those are read that are asked for.

    Args:
        table: what the index knows of them.
    """

    table: Table | None = None

    @property
    def classes(self) -> Sequence[str]:
        """The first sub-folder of every image; "" for one that lies in the folder itself."""
        assert self.table is not None
        return self.table.classes

    @property
    def ids(self) -> Numbers:
        """Of every image."""
        assert self.table is not None
        return self.table.ids


@dataclasses.dataclass(frozen=True)
class Gallery:
    """An index that was written.

    Args:
        place: its folder.
        embedded: what it holds.
        factory: faiss's factory string, or "" for exact search.
        faiss: what searches it, None for exact search.
        again: what to type for the same index anew.
        changes: against the index that it replaced, of the same folder; None where there was none.
    """

    place: Path
    embedded: Embedded
    factory: str
    faiss: FaissIndex | None = None
    again: str = ""
    changes: Changes | None = None

    @functools.cached_property
    def folder(self) -> str:
        """Where the images lie, without links, with a slash at its end."""
        return os.path.join(os.path.realpath(self.embedded.folder), "")


@dataclasses.dataclass(frozen=True)
class Owner:
    """The run that an index belongs to.

    Args:
        folder: of the run.
        identity: of its weights.
        size: of its embeddings.
        device: where embeddings are read to.
    """

    folder: Path
    identity: str
    size: int
    device: torch.device


class About(BaseModel):
    """What stands in ``index.json``."""

    model_config = ConfigDict(strict=True)

    layout: int
    run: str
    identity: str
    folder: str
    factory: str
    images: int = Field(ge=1)
    next_id: int = Field(ge=1)
    skipped: dict[str, str]
    effort: int | None = None
    recall_at_10: float | None = None
    embeddings: Part
    table: Part
    faiss: Part | None = None

    def parts(self) -> list[Part]:
        """All files but ``index.json``."""
        return [part for part in (self.embeddings, self.table, self.faiss) if part is not None]


# Writing


@contextlib.contextmanager
def alone_with(place: Path) -> Iterator[None]:
    """Inside, no other process writes the index; a second one waits, with a warning.

    Args:
        place: the index's folder; created where it is missing, and removed again if nothing was written.
    """

    def waits() -> None:
        warnings.warn(
            f"{place}: another process writes this index; waiting until it is done", RetrievalWarning, stacklevel=6
        )

    with writing(place):
        place.mkdir(parents=True, exist_ok=True)
    try:
        with alone_in(place, waits):
            yield
    except BaseException:
        with contextlib.suppress(OSError):  # it is not empty
            place.rmdir()
        raise


def write_index(place: Path, owner: Owner, embedded: Embedded, faiss: FaissIndex | None) -> Gallery:
    """Writes an index, whose older one it replaces in one step; to be called inside of :func:`alone_with`.

    Args:
        place: its folder.
        owner: the run.
        embedded: the images.
        faiss: what searches them, None for exact search.

    Raises:
        DataError: embeddings that are not finite or not of length 1, or a path that leaves the folder.
        UnwritableError: the disk is full, say; the old index stands.
    """
    points = embedded.embeddings.cpu().numpy()
    _check(embedded, points)
    ids, next_id, changes = _ids(place, owner, embedded)
    about: dict[str, object] = {
        "layout": LAYOUT,
        "run": str(owner.folder),
        "identity": owner.identity,
        "folder": str(embedded.folder.resolve()),
        "factory": faiss.factory if faiss is not None else "",
        "images": len(embedded.paths),
        "next_id": next_id,
        "skipped": embedded.skipped,
    }
    token = secrets.token_hex(8)
    writers: dict[str, tuple[str, Callable[[Path], None]]] = {
        "embeddings": (f"embeddings-{token}.npy", lambda path: _write_points(path, points)),
        "table": (f"images-{token}.arrow", lambda path: write_table(path, embedded, ids)),
    }
    if faiss is not None:
        about |= {"effort": faiss.effort, "recall_at_10": faiss.recall}
        writers["faiss"] = (f"faiss-{token}.faiss", faiss.write)
    old = _left_overs(place)
    try:
        about |= {part: write_part(place / name, write) for part, (name, write) in writers.items()}
        write_json(place / ABOUT, about)
    except BaseException:  # a full disk is not filled with what nobody can use
        if not _is_named(place, token):
            for name, _ in writers.values():
                (place / name).unlink(missing_ok=True)
        raise
    for path in old:
        with contextlib.suppress(PermissionError):  # on Windows, while a reader has it open: the next index removes it
            path.unlink(missing_ok=True)
    return dataclasses.replace(read_index(place, owner), changes=changes)


def _write_points(path: Path, points: NDArray[np.float32]) -> None:
    with path.open("wb") as file:
        np.save(file, np.ascontiguousarray(points, dtype=np.float32))


def _is_named(place: Path, token: str) -> bool:
    """Whether ``index.json`` names the parts with a token: it was replaced, and what failed came after."""
    try:
        return token.encode() in (place / ABOUT).read_bytes()
    except OSError:
        return False


def _check(embedded: Embedded, points: NDArray[np.float32]) -> None:
    if len(points) != len(embedded.paths) or points.ndim != 2 or not len(points):
        raise DataError(
            f"an index wants an embedding for each of 1 image or more; there are {len(embedded.paths)} "
            f"paths and embeddings of shape {list(points.shape)}"
        )
    outside = next((name for name in embedded.paths if not is_inside(name)), None)
    if outside is not None:
        raise DataError(f"{shortened(outside, 100)!r} is no path inside of {embedded.folder}")
    for start in range(0, len(points), _ROWS):
        lengths = np.linalg.norm(points[start : start + _ROWS], axis=1)
        wrong = ~(np.isfinite(lengths) & ((abs(lengths - 1) < 0.01) | (lengths == 0)))
        if wrong.any():
            number = int(wrong.argmax())
            raise DataError(
                f"{embedded.paths[start + number]}: its embedding has length {lengths[number]:.4g}; an "
                "index wants embeddings of length 1"
            )


def _ids(place: Path, owner: Owner, embedded: Embedded) -> tuple[Numbers, int, Changes | None]:
    """An id for each image, the next one that is free, and what has changed since the index before."""
    count, fresh = len(embedded.paths), np.full(len(embedded.paths), UNKNOWN, dtype=np.int64)
    try:
        about = _parsed(place, owner, (place / ABOUT).read_bytes())
    except (OSError, DataError):  # there is none, or nothing that can be read
        return np.arange(count), count, None
    changes = None
    if about.folder == str(embedded.folder.resolve()):
        with contextlib.suppress(UnfitError):
            table = read_table(check_part(place, about.table, ABOUT), DataError)
            fresh, changes = compared(table, embedded)
    new = np.flatnonzero(fresh == UNKNOWN)
    fresh[new] = about.next_id + np.arange(len(new))
    return fresh, about.next_id + len(new), changes


def _left_overs(place: Path) -> list[Path]:
    """What an index in the folder consists of, and what interrupted ones left: all that a new one makes useless."""
    parts = [path for path in place.iterdir() if _LEFT_OVER.fullmatch(path.name)]
    if (place / ABOUT).exists() and not _names_its_parts(place / ABOUT):
        parts += [place / name for name in _OLD_PARTS]
    return parts


def _names_its_parts(path: Path) -> bool:
    try:
        about = json.loads(path.read_bytes())
    except ValueError:
        return False
    return isinstance(about, dict) and "embeddings" in about


# Reading


def indexed_folder(run: Path, place: Path | None = None) -> Path:
    """The folder that an index was built of, by this run or by an earlier state of it.

    Args:
        run: the run's folder.
        place: the index's folder; by default ``index`` in the run's folder.

    Raises:
        DataError: no index there, or one that cannot be read.
    """
    place, owner = place or run / INDEX, Owner(run, "", 0, torch.device("cpu"))
    return Path(_parsed(place, owner, _read_about(place, owner)).folder)


def read_index(place: Path, owner: Owner, thorough: bool = False) -> Gallery:
    """Opens an index whole, or not at all; embeddings and paths are mapped into memory.

    Args:
        place: its folder.
        owner: the run that asks.
        thorough: whether large parts are read whole for their sums.

    Raises:
        DataError: no index there, a damaged one, or one that another run, or an earlier state of this one, has built.
    """
    while True:
        text = _read_about(place, owner)
        about = _parsed(place, owner, text)
        if about.identity != owner.identity:
            raise DataError(
                f"{place} was built by the run {about.run} ({about.identity}), not by {owner.folder} "
                f"({owner.identity}); type: {_command(place, owner, about)}"
            )
        try:
            return _read_parts(place, owner, about, thorough)
        except UnfitError as error:
            if _read_about(place, owner) == text:
                raise DataError(f"{error}; type: {_command(place, owner, about)}") from None
            # another process has replaced the index meanwhile: the new one is read


def _read_about(place: Path, owner: Owner) -> bytes:
    if not (place / ABOUT).is_file():
        raise DataError(f"{place}: no index; type: {_command(place, owner)}")
    return (place / ABOUT).read_bytes()


def _parsed(place: Path, owner: Owner, text: bytes) -> About:
    try:
        value: dict[str, Any] = unsealed(json.loads(text))
        if "layout" not in value and {"identity", "folder", "images"} <= value.keys():
            raise DataError(f"{place / ABOUT}: an index of an earlier version; type: {_command(place, owner, value)}")
        about = About.model_validate(value)
    except (ValueError, RecursionError) as error:  # pydantic's and json's are ValueErrors
        raise DataError(
            f"{place / ABOUT}: empty, cut or no index ({reason_of(error)}); type: {_command(place, owner)}"
        ) from None
    if about.layout != LAYOUT:
        raise DataError(
            f"{place / ABOUT}: an index of layout {about.layout}, and this pml-ext reads {LAYOUT}; "
            f"type: {_command(place, owner, about)}"
        )
    return about


def _command(place: Path, owner: Owner, about: About | dict[str, Any] | None = None) -> str:
    """What to type for an index that is whole."""
    words = ["pml-ext", "index", str(owner.folder)]
    options = ["-o", str(place)] if place != owner.folder / INDEX else []
    if about is None:
        return f"{shlex.join(words)} FOLDER{' ' * bool(options)}{shlex.join(options)}"
    values = about if isinstance(about, dict) else about.model_dump()
    factory = ["--index", str(values["factory"])] if values.get("factory") else []
    return shlex.join([*words, str(values["folder"]), *options, *factory])


def _read_parts(place: Path, owner: Owner, about: About, thorough: bool) -> Gallery:
    if (about.faiss is not None) != bool(about.factory):
        raise UnfitError(f"{place / ABOUT}: the index {about.factory!r} and its files do not fit")
    again = _command(place, owner, about)
    points = _map_points(check_part(place, about.embeddings, ABOUT, thorough), owner)
    path = check_part(place, about.table, ABOUT, thorough)
    table = read_table(
        path,
        lambda name: DataError(
            f"{path}: the image {shortened(name, 100)!r} is not in the folder that was indexed; type: {again}"
        ),
    )
    for which, count in ((about.embeddings, len(points)), (about.table, len(table.paths))):
        if count != about.images:
            raise UnfitError(f"{place / which.file}: {count} images, not the {about.images} of {ABOUT}")
    embedded = IndexedImages(
        Path(about.folder),
        table.paths,
        torch.from_numpy(points).to(owner.device),
        about.skipped,
        table.sizes,
        table.times,
        table=table,
    )
    if about.faiss is None:
        return Gallery(place, embedded, "", again=again)
    faiss = _read_faiss(check_part(place, about.faiss, ABOUT, thorough), about.factory, points.shape)
    faiss.effort, faiss.recall = about.effort or 0, about.recall_at_10
    return Gallery(place, embedded, about.factory, faiss, again)


def _map_points(path: Path, owner: Owner) -> NDArray[np.float32]:
    try:
        # Copied where it is written to, which nobody does: torch warns of arrays that may not be.
        points = np.load(path, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, EOFError, SyntaxError) as error:
        raise UnfitError(f"{path}: empty, cut or no embeddings ({reason_of(error)})") from None
    if points.ndim != 2 or points.dtype != np.float32 or points.shape[1] != owner.size or not points.flags.c_contiguous:
        raise UnfitError(f"{path}: embeddings of {points.dtype} {list(points.shape)}, wanted float32 [N, {owner.size}]")
    return points  # type: ignore[no-any-return]


def _read_faiss(path: Path, factory: str, shape: tuple[int, ...]) -> FaissIndex:
    try:
        faiss = FaissIndex.read(path, factory)
    except (RuntimeError, MemoryError) as error:
        raise UnfitError(f"{path}: empty, cut or no faiss index ({reason_of(error)})") from None
    if (faiss.index.ntotal, faiss.index.d) != shape:
        raise UnfitError(
            f"{path}: {faiss.index.ntotal} points of size {faiss.index.d}, not {shape[0]} of "
            f"{shape[1]}, as the embeddings"
        )
    return faiss
