"""An index on the disk: parts with names of their own, and ``index.json``, which is written last and names them.

Until ``index.json`` is replaced, in one step, the old index stands; from then on the new one does. It has the SHA-256
of every part, so that parts that do not belong together are noticed. Parts that it does not name are left-overs, which
the next index removes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import secrets
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from ..errors import DataError, shortened
from ..files import alone_in, unsealed, write_json
from .checks import reason_of
from .embedding import Embedded, save_npz
from .faiss_index import FaissIndex

INDEX = "index"  # the folder in a run's folder that `pml-ext index` writes by default
_ABOUT = "index.json"
_OLD_PARTS = ("embeddings.npz", "index.faiss")  # of an index without checksums, as earlier versions wrote it
_LEFT_OVER = re.compile(
    r"(embeddings-[0-9a-f]{16}\.npz|faiss-[0-9a-f]{16}\.faiss"
    r"|\.(embeddings\.npz|index\.faiss|index\.json)\.\d+\.tmp)"
)


@dataclasses.dataclass(frozen=True)
class Gallery:
    """An index that was written.

    Args:
        place: its folder.
        embedded: what it holds.
        factory: faiss's factory string, or "" for exact search.
        faiss: what searches it, None for exact search.
    """

    place: Path
    embedded: Embedded
    factory: str
    faiss: FaissIndex | None = None


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


class _Part(BaseModel):
    model_config = ConfigDict(strict=True)

    file: str = Field(pattern=r"^[\w-]+\.\w+$")  # in the index's folder, nowhere else
    sha256: str


class _About(BaseModel):
    """What stands in ``index.json``."""

    model_config = ConfigDict(strict=True)

    run: str
    identity: str
    folder: str
    factory: str
    images: int
    skipped: dict[str, str]
    effort: int | None = None
    recall_at_10: float | None = None
    embeddings: _Part | None = None  # None in an index of earlier versions
    faiss: _Part | None = None


# Writing


def write_index(place: Path, owner: Owner, embedded: Embedded, faiss: FaissIndex | None) -> Gallery:
    """Writes an index, whose older one it replaces in one step.

    Args:
        place: its folder; created where it is missing.
        owner: the run.
        embedded: the images.
        faiss: what searches them, None for exact search.
    """
    place.mkdir(parents=True, exist_ok=True)
    about: dict[str, object] = {
        "run": str(owner.folder), "identity": owner.identity, "folder": str(embedded.folder.resolve()),
        "factory": faiss.factory if faiss is not None else "", "images": len(embedded.paths),
        "skipped": embedded.skipped,
    }  # fmt: skip
    token = secrets.token_hex(8)
    writers: dict[str, tuple[str, Callable[[Path], None]]] = {
        "embeddings": (f"embeddings-{token}.npz", lambda path: save_npz(path, embedded))
    }
    if faiss is not None:
        about |= {"effort": faiss.effort, "recall_at_10": faiss.recall}
        writers["faiss"] = (f"faiss-{token}.faiss", faiss.write)
    with alone_in(place):  # none takes another's parts for left-overs
        old = _left_overs(place)
        try:
            about |= {part: _write_part(place / name, write) for part, (name, write) in writers.items()}
        except BaseException:  # a full disk is not filled with what nobody can use
            for name, _ in writers.values():
                (place / name).unlink(missing_ok=True)
            raise
        write_json(place / _ABOUT, about)
        for path in old:
            path.unlink(missing_ok=True)
    return Gallery(place, embedded, str(about["factory"]), faiss)


def _write_part(path: Path, write: Callable[[Path], None]) -> dict[str, str]:
    write(path)
    with path.open("rb+") as file:
        os.fsync(file.fileno())
        return {"file": path.name, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _left_overs(place: Path) -> list[Path]:
    """What an index in the folder consists of, and what interrupted ones left: all that a new one makes useless."""
    parts = [path for path in place.iterdir() if _LEFT_OVER.fullmatch(path.name)]
    if (place / _ABOUT).exists() and not _names_its_parts(place / _ABOUT):
        parts += [place / name for name in _OLD_PARTS]
    return parts


def _names_its_parts(path: Path) -> bool:
    try:
        about = json.loads(path.read_bytes())
    except ValueError:
        return False
    return isinstance(about, dict) and "embeddings" in about


# Reading


class _Unfit(Exception):
    """A part of an index that cannot be used; the text has its path and why."""


def read_index(place: Path, owner: Owner) -> Gallery:
    """Reads an index whole, or not at all.

    Args:
        place: its folder.
        owner: the run that asks.

    Raises:
        DataError: no index there, a damaged one, or one that another run, or an earlier state of this one, has built.
    """
    while True:
        text = _read_about(place, owner)
        about = _parsed(place, owner, text)
        try:
            return _read_parts(place, owner, about)
        except _Unfit as error:
            if _read_about(place, owner) == text:
                raise DataError(f"{error}; type: {_command(place, owner, about)}") from None
            # another process has replaced the index meanwhile: the new one is read


def _read_about(place: Path, owner: Owner) -> bytes:
    if not (place / _ABOUT).is_file():
        raise DataError(f"{place}: no index; type: {_command(place, owner)}")
    return (place / _ABOUT).read_bytes()


def _parsed(place: Path, owner: Owner, text: bytes) -> _About:
    try:
        about = _About.model_validate(unsealed(json.loads(text)))
    except (ValueError, RecursionError) as error:  # pydantic's and json's are ValueErrors
        raise DataError(f"{place / _ABOUT}: empty, cut or no index ({reason_of(error)}); "
                        f"type: {_command(place, owner)}") from None  # fmt: skip
    if about.identity != owner.identity:
        raise DataError(
            f"{place} was built by the run {about.run} ({about.identity}), not by {owner.folder} ({owner.identity}); "
            f"type: {_command(place, owner, about)}"
        )
    return about


def _command(place: Path, owner: Owner, about: _About | None = None) -> str:
    """What to type for an index that is whole."""
    words = ["pml-ext", "index", str(owner.folder)]
    options = ["-o", str(place)] if place != owner.folder / INDEX else []
    if about is None:
        return f"{shlex.join(words)} FOLDER{' ' * bool(options)}{shlex.join(options)}"
    return shlex.join([*words, about.folder, *options, *(["--index", about.factory] if about.factory else [])])


def _read_parts(place: Path, owner: Owner, about: _About) -> Gallery:
    embeddings = place / (about.embeddings.file if about.embeddings is not None else _OLD_PARTS[0])
    index = place / (about.faiss.file if about.faiss is not None else _OLD_PARTS[1])
    if about.embeddings is not None:
        if (about.faiss is not None) != bool(about.factory):
            raise _Unfit(f"{place / _ABOUT}: the index {about.factory!r} and its files do not fit")
    else:
        _check_old_parts(place, [embeddings, index] if about.factory else [embeddings])
    points, paths = _read_embeddings(embeddings, about.embeddings, owner)
    if len(paths) != about.images:
        raise _Unfit(f"{embeddings}: {len(paths)} images, not the {about.images} of {_ABOUT}")
    embedded = Embedded(Path(about.folder), paths, points, about.skipped)
    if not about.factory:
        return Gallery(place, embedded, "")
    faiss = _read_faiss(index, about.faiss, about.factory, points)
    if about.effort is None:
        faiss.tune(points)
    else:
        faiss.effort, faiss.recall = about.effort, about.recall_at_10
    return Gallery(place, embedded, about.factory, faiss)


def _check_old_parts(place: Path, parts: list[Path]) -> None:
    """Earlier versions wrote ``index.json`` last too, but over the old index: a part that is newer is of another one.

    A new index takes more than the two seconds that are allowed for copies, which are written in any order.
    """
    written = (place / _ABOUT).stat().st_mtime
    for part in parts:
        if part.is_file() and part.stat().st_mtime > written + 2:
            raise _Unfit(f"{part}: newer than {_ABOUT}, so of another index")


def _read_embeddings(path: Path, part: _Part | None, owner: Owner) -> tuple[Tensor, list[str]]:
    try:
        with path.open("rb") as file:
            if part is not None and hashlib.file_digest(file, "sha256").hexdigest() != part.sha256:
                raise _Unfit(f"{path}: not the file that {_ABOUT} was written for")
            file.seek(0)
            with np.load(file) as saved:
                points, paths = saved["embeddings"], saved["paths"]
    except _Unfit:
        raise
    except FileNotFoundError:
        raise _Unfit(f"{path}: missing") from None
    except Exception as error:  # numpy raises what its zip, header and array readers happen to raise
        raise _Unfit(f"{path}: empty, cut or no embeddings ({reason_of(error)})") from None
    if points.ndim != 2 or points.dtype != np.float32 or points.shape[1] != owner.size:
        raise _Unfit(f"{path}: embeddings of {points.dtype} {list(points.shape)}, wanted float32 [N, {owner.size}]")
    if paths.ndim != 1 or paths.dtype.kind != "U" or len(paths) != len(points):
        raise _Unfit(f"{path}: {len(points)} embeddings do not fit its paths, {paths.dtype} {list(paths.shape)}")
    if (outside := next((name for name in paths.tolist() if not _is_inside(name)), None)) is not None:
        raise _Unfit(f"{path}: the image {shortened(outside, 100)!r} is not in the folder that was indexed")
    if not np.isfinite(points).all():
        raise _Unfit(f"{path}: NaN or infinity among the embeddings")
    return torch.from_numpy(points).to(owner.device), paths.tolist()


def _is_inside(name: str) -> bool:
    """Whether a path of an index stays in the folder that was indexed."""
    return bool(name) and not name.startswith("/") and not {"..", ""} & set(name.split("/")) and "\0" not in name


def _read_faiss(path: Path, part: _Part | None, factory: str, points: Tensor) -> FaissIndex:
    try:
        if part is not None:
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != part.sha256:
                    raise _Unfit(f"{path}: not the file that {_ABOUT} was written for")
        elif not path.is_file():
            raise FileNotFoundError
        faiss = FaissIndex.read(path, factory)
    except FileNotFoundError:
        raise _Unfit(f"{path}: missing") from None
    except (RuntimeError, MemoryError) as error:
        raise _Unfit(f"{path}: empty, cut or no faiss index ({reason_of(error)})") from None
    if (faiss.index.ntotal, faiss.index.d) != tuple(points.shape):
        raise _Unfit(f"{path}: {faiss.index.ntotal} points of size {faiss.index.d}, not {len(points)} of "
                     f"{points.shape[1]}, as the embeddings")  # fmt: skip
    return faiss
