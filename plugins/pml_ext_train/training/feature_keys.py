"""What features depend on: the digest that names a store, and the keys in it."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..data import LabeledImages
from ..files.stat import MISSING, FileStat, file_stat, path_bytes

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of an object without a representation of its own, in that of a module
# Names of batch norms, and the order of what timm's hold, differ in a network that several processes have trained.
_BATCH_NORM = re.compile(r"\b_?(Sync|Joined)?BatchNorm(Act)?([123]d)?\(")
_ACT_BEFORE_DROP = re.compile(r"( *\(act\): .*\n)( *\(drop\): .*\n)")


def trunk_digest(trunk: nn.Module, about: Any) -> str:
    """Return the digest of a trunk's modules and weights, and of everything in ``about``."""
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    modules = _BATCH_NORM.sub("BatchNorm(", _ADDRESS.sub("", str(trunk)))
    digest.update(_ACT_BEFORE_DROP.sub(r"\2\1", modules).encode())
    for name, tensor in trunk.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def keys_of(images: LabeledImages, view: int) -> list[bytes]:
    """Return the key of each image in a view: its file or pixels, and its box."""
    if images.paths is None:
        pixels: Any = images.images
        sources = [hashlib.sha256(image.contiguous().numpy().data).digest() for image in pixels]
    else:
        sources = [file_bytes(path) for path in images.paths]
    boxes = [b""] * len(sources) if images.boxes is None else [repr(box.tolist()).encode() for box in images.boxes]
    return [key_of(source, box, view) for source, box in zip(sources, boxes, strict=True)]


def key_of(source: bytes, box: bytes = b"", view: int = 0) -> bytes:
    """Return the key of an image's features; by default of the whole, unaugmented image."""
    return b"%s\0%s\0%d" % (source, box, view)


def file_bytes(path: str | Path) -> bytes:
    """Return a file's resolved path as bytes."""
    return path_bytes(os.path.realpath(path))


def stat_of(path: Path | None) -> FileStat:
    """Return size and time of a file, constant for pixels or a missing file."""
    if path is None:
        return (0, 0)
    return file_stat(Path(path)) or MISSING


def seed_of(key: bytes) -> int:
    """Return the seed of an image's random transforms."""
    return int.from_bytes(hashlib.sha256(key).digest()[:7])
