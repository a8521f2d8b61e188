"""The network of a run for programs without this package."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from ..errors import needs_extra
from ..files import write_atomically, write_json
from ..sums import write_sums


def write_export(folder: Path, parts: Mapping[str, nn.Module], about: Mapping[str, Any]) -> None:
    """Writes ``model.safetensors``, ``preprocess.json``, which has the checksum of both, and ``SHA256SUMS``.

    Args:
        folder: to write; created where it is missing.
        parts: the networks by name; a tensor is called ``NAME.KEY``.
        about: what stands in ``preprocess.json``.

    Raises:
        MissingExtraError: safetensors is not installed.
    """
    with needs_extra("train", "export"):
        from safetensors.torch import save_file
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"{part}.{name}": tensor.detach().cpu().contiguous()
        for part, module in parts.items()
        for name, tensor in module.state_dict().items()
    }
    weights = folder / "model.safetensors"
    write_atomically(weights, lambda path: save_file(tensors, path))
    with weights.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    write_json(folder / "preprocess.json", {**about, "weights": {"file": weights.name, "sha256": digest}})
    write_sums(folder, leave_out=lambda name: name not in (weights.name, "preprocess.json"))
