"""The network of a run for programs without this package: weights, graphs, preprocessing and a model card."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..checksums import is_unchanged, sha256_of, write_sums
from ..errors import ConfigError, needs_extra, one_line, shortened
from ..experiment.recipe import Recipe
from ..files import write_atomically, write_json, write_text
from ..network import Network
from .card import CARD, card
from .checks import StoreWarning

WEIGHTS, ABOUT, ONNX, TORCH_EXPORT = "model.safetensors", "preprocess.json", "model.onnx", "model.pt2"
MOST = 1e-4  # the largest accepted difference of an embedding's number


class Normalized(nn.Module):
    """Embeddings of length 1 of transformed images, ``[B, C, S, S]`` to ``[B, D]``."""

    def __init__(self, trunk: nn.Module, embedder: nn.Module) -> None:
        super().__init__()
        self.trunk, self.embedder = trunk, embedder

    def forward(self, images: Tensor) -> Tensor:
        """Return embeddings, ``[B, D]``."""
        return nn.functional.normalize(self.embedder(self.trunk(images)))


def write_export(
    folder: Path, run: Path, recipe: Recipe, network: Network, graphs: Sequence[str], images: Tensor | None
) -> None:
    """Write ``model.safetensors``, graphs, ``preprocess.json``, a model card, and the checksums of all.

    Graphs of an earlier export that are not wanted now are removed; a card that somebody has changed stays.
    """
    with needs_extra("train", "export"):
        from safetensors.torch import save_file
    folder.mkdir(parents=True, exist_ok=True)
    for name in {ONNX, TORCH_EXPORT} - set(graphs):
        if is_unchanged(folder, name):
            (folder / name).unlink(missing_ok=True)
    about = _about(recipe, network)
    files: dict[str, Any] = {}
    if images is not None:
        whole = copy.deepcopy(Normalized(network.trunk, network.embedder)).cpu().eval()
        for name in graphs:
            key, write = ("onnx", write_onnx) if name == ONNX else ("torch_export", write_torch_export)
            difference = write(folder / name, whole, images)
            files[key] = {"file": name, "sha256": sha256_of(folder / name), "largest_difference": difference}
    tensors = {
        f"{part}.{name}": tensor.detach().cpu().contiguous()
        for part in ("trunk", "embedder")
        for name, tensor in getattr(network, part).state_dict().items()
    }
    write_atomically(folder / WEIGHTS, lambda path: save_file(tensors, path))
    weights = {"weights": {"file": WEIGHTS, "sha256": sha256_of(folder / WEIGHTS)}}
    write_json(folder / ABOUT, {**about, **weights, **files})
    own = {WEIGHTS, ABOUT, CARD, *graphs}
    if (folder / CARD).exists() and not is_unchanged(folder, CARD):
        text = f"{folder / CARD} is none that an export wrote, or was changed since; it is left as it is"
        warnings.warn(text, StoreWarning, stacklevel=3)
        own.remove(CARD)
    else:
        write_text(folder / CARD, card(run, recipe, network.trunk, about, [WEIGHTS, *graphs]))
    write_sums(folder, sorted(own))


def _about(recipe: Recipe, network: Network) -> dict[str, Any]:
    seen, model = network.preprocessing, recipe.model
    return {
        "trunk": {"name": model.trunk.name, **model.trunk.settings},
        "embedding_size": model.embedding_size,
        "hidden_sizes": model.hidden_sizes,
        "features": network.features,
        "image_size": seen.image_size,
        "channels": seen.channels,
        "resize": seen.resized_to,
        "squash": seen.squash,
        "bgr": seen.bgr,
        "value_range": seen.value_range,
        "normalize": seen.normalize.model_dump() if seen.normalize is not None else None,
        "l2_normalize_embeddings": True,
    }


def check_onnx() -> None:
    """Raise a MissingExtraError where the extra ``[onnx]`` is not installed."""
    with needs_extra("onnx", "export --onnx"):
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401


def write_onnx(path: Path, network: Normalized, images: Tensor) -> float:
    """Write an ONNX file, input ``images`` and output ``embeddings``, for batches of any size."""
    check_onnx()
    import onnxruntime

    settings: dict[str, Any] = {"input_names": ["images"], "output_names": ["embeddings"]}
    if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 6):
        settings |= {"dynamo": True, "dynamic_shapes": {"images": {0: _batch()}}, "external_data": False}
    else:
        settings |= {"dynamic_axes": {"images": {0: "batch"}, "embeddings": {0: "batch"}}}

    def write(temporary: Path) -> None:
        with _quiet(), _refused("ONNX"):
            torch.onnx.export(network, (images[:2],), str(temporary), **settings)

    def opened() -> Any:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return lambda batch: torch.from_numpy(session.run(None, {"images": batch.numpy()})[0])

    write_atomically(path, write)
    return _compared(path, network, opened, images)


def write_torch_export(path: Path, network: Normalized, images: Tensor) -> float:
    """Write a file for ``torch.export.load``; arguments, result and errors are those of :func:`write_onnx`."""

    def write(temporary: Path) -> None:
        content = io.BytesIO()
        with _quiet(), _refused("torch.export"):
            shapes = {"images": {0: _batch()}}
            torch.export.save(torch.export.export(network, (images[:2],), dynamic_shapes=shapes), content)
        temporary.write_bytes(content.getvalue())

    write_atomically(path, write)
    return _compared(path, network, lambda: torch.export.load(str(path)).module(), images)


def _batch() -> Any:
    return torch.export.Dim("batch", min=1, max=2**16)


@torch.no_grad()
def _compared(path: Path, network: Normalized, opened: Callable[[], Any], images: Tensor) -> float:
    """Return the largest difference, in batches of one and of several; a file that differs too much is removed."""
    try:
        with _quiet(), _refused(f"{path.name} for batches of any size"):
            other = opened()
            parts = (images[:1], *torch.split(images, 7))
            largest = max(float((other(part) - network(part)).abs().max()) for part in parts)
        if not largest <= MOST:  # NaN too
            raise ConfigError(
                f"{path.name} gives embeddings that differ from the network's by {largest:.1e}, more "
                f"than {MOST:.0e}; it is not kept. model.safetensors has the weights"
            )
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return largest


@contextlib.contextmanager
def _refused(what: str) -> Iterator[None]:
    try:
        yield
    except OSError:
        raise
    except Exception as error:  # torch's tracers have no common error
        reason = shortened(one_line(error), 250)
        raise ConfigError(
            f"torch {torch.__version__} cannot write this network as {what} ({reason}); "
            "model.safetensors has the weights"
        ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide the messages of exporters, which are about torch's own code."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        said = io.StringIO()
        with warnings.catch_warnings(), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
