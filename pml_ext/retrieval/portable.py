"""The network of a run as a graph: for ONNX Runtime, or for ``torch.export.load``; compared with the network itself."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ConfigError, needs_extra, one_line, shortened
from ..files import write_atomically

ONNX, TORCH_EXPORT = "model.onnx", "model.pt2"
MOST = 1e-4  # the largest difference of an embedding that is let pass


class Normalized(nn.Module):
    """Embeddings of length 1 of transformed images, ``[B, C, S, S]``.

    Args:
        trunk: of the run.
        embedder: of the run.
    """

    def __init__(self, trunk: nn.Module, embedder: nn.Module) -> None:
        super().__init__()
        self.trunk, self.embedder = trunk, embedder

    def forward(self, images: Tensor) -> Tensor:
        """Embeddings, ``[B, D]``."""
        return nn.functional.normalize(self.embedder(self.trunk(images)))


def check_onnx() -> None:
    """Refuses to go on without what ONNX files need.

    Raises:
        MissingExtraError: the extra ``[onnx]`` is not installed.
    """
    with needs_extra("onnx", "export --onnx"):
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401


def write_onnx(path: Path, network: Normalized, images: Tensor) -> float:
    """Writes an ONNX file, input ``images`` and output ``embeddings``, for batches of any size.

    Args:
        path: of the file.
        network: in evaluation mode, on the CPU.
        images: by which it is compared, ``[N, C, S, S]``, N above 1.

    Returns:
        The largest difference of a number of an embedding between ONNX Runtime and torch.

    Raises:
        MissingExtraError: the extra ``[onnx]`` is not installed.
        ConfigError: torch cannot write the network as ONNX, or the embeddings differ by more than 1e-4.
    """
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
    """Writes what ``torch.export.load`` reads, for batches of any size.

    Arguments, what is returned and errors are those of :func:`write_onnx`.
    """

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
    """The largest difference, in batches of one and of several; a file that differs too much is removed."""
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
    except Exception as error:  # torch raises what its tracers happen to raise
        reason = shortened(one_line(error), 250)
        raise ConfigError(
            f"torch {torch.__version__} cannot write this network as {what} ({reason}); "
            "model.safetensors has the weights"
        ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Inside, what exporters say is not shown: it is about torch's own code."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        said = io.StringIO()
        with warnings.catch_warnings(), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
