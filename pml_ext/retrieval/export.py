"""The network of a run for programs without this package."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import needs_extra
from ..files import sha256_of, write_atomically, write_json, write_text
from ..network import Network
from ..sums import is_summed, write_sums
from .card import CARD
from .portable import ONNX, TORCH_EXPORT, Normalized, write_onnx, write_torch_export
from .store import StoreWarning

WEIGHTS, ABOUT = "model.safetensors", "preprocess.json"
_GRAPHS = {ONNX: write_onnx, TORCH_EXPORT: write_torch_export}


def write_export(
    folder: Path, network: Network, about: Mapping[str, Any], graphs: Mapping[str, Tensor]
) -> dict[str, float]:
    """Writes ``model.safetensors``, graphs if they are wanted, and ``preprocess.json``, which has their checksums.

    Graphs of an earlier export that are not wanted now are removed.

    Args:
        folder: to write; created where it is missing.
        network: its trunk and embedder are written; a tensor is called ``trunk.KEY`` or ``embedder.KEY``.
        about: what stands in ``preprocess.json``.
        graphs: which graphs are wanted, ``"model.onnx"`` or ``"model.pt2"``, and the images, ``[N, C, S, S]``, by which
            each is compared with the network.

    Returns:
        The largest difference of a number of an embedding, by graph.

    Raises:
        MissingExtraError: safetensors, or what a graph needs, is not installed.
        ConfigError: torch cannot write a graph, or its embeddings differ by more than 1e-4.
    """
    with needs_extra("train", "export"):
        from safetensors.torch import save_file
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"{part}.{name}": tensor.detach().cpu().contiguous()
        for part in ("trunk", "embedder")
        for name, tensor in getattr(network, part).state_dict().items()
    }
    for name in set(_GRAPHS) - set(graphs):
        if is_summed(folder, name):
            (folder / name).unlink(missing_ok=True)
    differences = {}
    if graphs:
        whole = copy.deepcopy(Normalized(network.trunk, network.embedder)).cpu().eval()
        differences = {name: _GRAPHS[name](folder / name, whole, images) for name, images in graphs.items()}
    write_atomically(folder / WEIGHTS, lambda path: save_file(tensors, path))
    described: dict[str, Any] = {"weights": {"file": WEIGHTS, "sha256": sha256_of(folder / WEIGHTS)}}
    for name, difference in differences.items():
        key = "onnx" if name == ONNX else "torch_export"
        described[key] = {"file": name, "sha256": sha256_of(folder / name), "largest_difference": difference}
    write_json(folder / ABOUT, {**about, **described})
    return differences


def write_card(folder: Path, text: str, files: Mapping[str, float]) -> None:
    """Writes the model card, unless somebody has changed it, and ``SHA256SUMS`` of all files of the export.

    Args:
        folder: of the export.
        text: of the card.
        files: the graphs that were written.
    """
    own = {WEIGHTS, ABOUT, CARD, *files}
    if (folder / CARD).exists() and not is_summed(folder, CARD):
        warnings.warn(
            f"{folder / CARD} is none that an export wrote, or was changed since; it is left as it is",
            StoreWarning,
            stacklevel=3,
        )
        own.remove(CARD)
    else:
        write_text(folder / CARD, text)
    write_sums(folder, leave_out=lambda name: name not in own)
