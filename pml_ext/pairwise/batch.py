"""Checks of a call's arguments, their precision, cached constants, and transforms."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

_FULL = (torch.float32, torch.float64)
_WITHOUT_FLOAT64 = frozenset({"mps"})  # types of devices
_CONSTANTS: dict[tuple[float | tuple[float, ...], torch.dtype, torch.device], Tensor] = {}
_LEAST_HALF = 2.0**-8  # a shorter row of float16 has the gradient of a row of this length


def check_batch(embeddings: Any, labels: Any = None, *, names: tuple[str, str] = ("embeddings", "labels")) -> None:
    """Check embeddings ``[B, D]``, floating point, and labels ``[B]``, integers or booleans.

    ``names`` appear in the messages. Raises TypeError for a wrong dtype, ValueError for a wrong shape. Floating point
    labels are refused, because float32 would merge 16777216 and 16777217.
    """
    what, labels_what = names
    if not isinstance(embeddings, Tensor) or not embeddings.is_floating_point():
        raise TypeError(
            f"{what} must be a floating point tensor of shape (batch size, embedding size); got {describe(embeddings)}"
        )
    if embeddings.ndim != 2:
        raise ValueError(f"{what} must have two dimensions, (batch size, embedding size); got {describe(embeddings)}")
    if labels is None:
        return
    is_tensor = isinstance(labels, Tensor)
    if is_tensor and labels.shape == embeddings.shape[:1] and not (labels.is_floating_point() or labels.is_complex()):
        return
    text = (
        f"{labels_what} must be a tensor of integers of shape ({len(embeddings)},), one for each row of {what}; got "
        f"{describe(labels)}"
    )
    if not is_tensor:
        raise TypeError(f"{text}; {how_to_encode(labels, labels_what)}")
    if labels.is_floating_point() or labels.is_complex():
        raise TypeError(f"{text}; type {labels_what}.long() where they are floating point")
    raise ValueError(text)


def labels_as_tensor(labels: Any, name: str) -> Tensor:
    """Convert labels to a tensor; TypeError for texts."""
    if isinstance(labels, Tensor):
        return labels
    try:
        return torch.as_tensor(labels)
    except (TypeError, ValueError):
        text = f"{name} must be integers, one for each item; got {describe(labels)}"
        raise TypeError(f"{text}; {how_to_encode(labels, name)}") from None


def how_to_encode(labels: Any, name: str) -> str:
    """Code that converts labels to integers."""
    if holds_texts(labels):
        return f"encode the labels of all items once: torch.as_tensor(numpy.unique({name}, return_inverse=True)[1])"
    return f"type torch.as_tensor(numpy.asarray({name}))"


def holds_texts(labels: Any) -> bool:
    """Whether a list, array or pandas Series contains texts."""
    if isinstance(labels, (str, Tensor)) or not hasattr(labels, "__iter__"):
        return False
    return isinstance(next(iter(labels), None), str)


def check_indices_tuple(indices_tuple: Any) -> Any:
    """Convert an ``indices_tuple`` to tensors; TypeError unless it is a tuple or list."""
    if indices_tuple is not None and not isinstance(indices_tuple, (tuple, list)):
        raise TypeError(
            "indices_tuple, the third argument of a loss, must be the tuple of index tensors that a miner "
            f"gives, or None; got {describe(indices_tuple)}. References go by name: type ref_emb=..., "
            "ref_labels=..."
        )
    if indices_tuple is None or type(indices_tuple) not in (tuple, list):  # or a named tuple of ours
        return indices_tuple
    try:
        return tuple(_index_tensor(index) for index in indices_tuple)
    except (TypeError, ValueError) as error:
        found = ", ".join(describe(x) for x in indices_tuple)
        raise TypeError(f"indices_tuple must hold tensors, arrays or lists of integers; got {found}") from error


def _index_tensor(index: Any) -> Tensor:
    if isinstance(index, Tensor):
        return index
    return torch.as_tensor(index, dtype=torch.long)


def check_references(embeddings: Tensor, ref_emb: Any, ref_labels: Any) -> None:
    """Check references ``[R, D]`` against their labels and the embeddings."""
    if ref_emb is None:
        if ref_labels is not None:
            raise ValueError("ref_labels are given without ref_emb, the references they belong to")
        return
    check_batch(ref_emb, ref_labels, names=("ref_emb", "ref_labels"))
    if ref_emb.shape[1] != embeddings.shape[1]:
        raise ValueError(
            f"ref_emb must have the embedding size of embeddings, {embeddings.shape[1]}; got {describe(ref_emb)}"
        )


def describe(value: Any) -> str:
    """Describe a value for an error message."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)} and dtype {value.dtype}"
    of_texts = " of texts" if holds_texts(value) else ""
    if hasattr(value, "shape") and hasattr(value, "dtype"):  # an array, or a Series of pandas
        kind = "an array" if type(value).__name__ == "ndarray" else f"a {type(value).__name__}"
        return f"{kind}{of_texts} of shape {tuple(value.shape)} and dtype {value.dtype}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"a {type(value).__name__}{of_texts} of length {len(value)}"
    return f"{value!r} ({type(value).__name__})"


def to_full_precision(x: Tensor, normalized: bool = False) -> Tensor:
    """Convert to float32, unless ``x`` is float32 or float64.

    If the rows will be ``normalized``, a float16 row shorter than 2^-8 gets the gradient of a row of that length, so
    that the gradient fits into float16.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    if not normalized or x.dtype != torch.float16:
        return wide
    fixed = wide.detach()
    share: Tensor = (torch.linalg.vector_norm(fixed, dim=1, keepdim=True) / _LEAST_HALF).clamp(max=1)
    return fixed + (wide - fixed) * share


def widest_dtype(device: torch.device | str) -> torch.dtype:
    """Float64, or float32 on a device without float64 (Apple's GPU)."""
    if torch.device(device).type in _WITHOUT_FLOAT64:
        return torch.float32
    return torch.float64


def to_device(x: Tensor, device: torch.device | str | None) -> Tensor:
    """Move a tensor to a device, float64 in the device's :func:`widest_dtype`; None leaves it."""
    if device is None:
        return x
    if x.dtype == torch.float64:
        return x.to(device, widest_dtype(device))
    return x.to(device)


class Float64Buffers:
    """Mixin for float64 buffers, which become float32 on a device without float64.

    It precedes the module's other base classes.
    """

    _buffers: dict[str, Tensor | None]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        device = fn(torch.empty(0)).device
        for name, buffer in self._buffers.items():
            if buffer is not None and buffer.dtype == torch.float64:
                self._buffers[name] = buffer.to(widest_dtype(device))
        return super()._apply(fn, recurse)  # type: ignore[misc]


def pair_to_full_precision(
    embeddings: Tensor, ref_emb: Tensor | None, normalized: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Embeddings and references in one dtype, float32 or float64."""
    first = embeddings
    if embeddings.dtype not in _FULL:
        first = to_full_precision(embeddings, normalized)
    if ref_emb is None:
        return first, None
    if ref_emb is embeddings:
        return first, first
    second = to_full_precision(ref_emb, normalized)
    dtype = torch.promote_types(first.dtype, second.dtype)
    return first.to(dtype), second.to(dtype)


def labels_to_int64(labels: Tensor | None, device: torch.device | None = None) -> Tensor | None:
    """Convert labels to int64; booleans cannot be sorted on every device."""
    if labels is None:
        return None
    if device is None:
        device = labels.device
    return labels.to(device, torch.long)


def normalizes(module: Any) -> bool:
    """Whether a loss or wrapped loss compares normalized embeddings."""
    while isinstance(getattr(module, "loss", None), torch.nn.Module):
        module = module.loss
    return bool(getattr(getattr(module, "distance", None), "normalize_embeddings", False))


def with_bad_input(value: Any, *inputs: Tensor | None) -> Any:
    """The loss, or NaN if any input contains NaN or infinity."""
    if not isinstance(value, Tensor):
        return value
    for x in inputs:
        if x is not None and x.numel():
            least, greatest = x.detach().aminmax()
            # 0 times both, or NaN. Where their product overflows on a GPU, the squares of the rows' lengths do too.
            value = torch.addcmul(value, least, greatest, value=0)
    return value


def constant(number: float | tuple[float, ...], like: Tensor) -> Tensor:
    """A number as a cached tensor without dimensions, with the dtype and device of ``like``.

    A tuple of S numbers gives ``[S, 1, 1]``. Nothing is cached under torch.compile and torch.func, in inference mode,
    and for Tensor subclasses.
    """
    if type(like) is not Tensor or torch.compiler.is_compiling():
        return _made(number, like)
    key = (number, like.dtype, like.device)
    known = _CONSTANTS.get(key)
    if known is None:
        known = _made(number, like)
        if outlives_the_call(known):
            _CONSTANTS[key] = known
    return known


def outlives_the_call(x: Tensor) -> bool:
    """Whether a tensor may be kept: it is no Tensor subclass, and belongs to no transform and no inference mode."""
    return type(x) is Tensor and not (x.is_inference() or transformed())


def _made(number: float | tuple[float, ...], like: Tensor) -> Tensor:
    if isinstance(number, tuple):
        return like.new_tensor(number).view(-1, 1, 1)
    return like.new_full((), number)


# Computed at import, since torch.compile of torch 2.4 cannot trace is_autocast_available.
_WITH_AUTOCAST = frozenset(name for name in ("cpu", "cuda", "mps", "xpu") if torch.amp.is_autocast_available(name))


def autocast_off(device: torch.device) -> AbstractContextManager[Any]:
    """Context without autocast."""
    if device.type not in _WITH_AUTOCAST:
        return nullcontext()
    if not (torch.compiler.is_compiling() or torch.is_autocast_enabled(device.type)):  # the query breaks a graph
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


# An autograd.Function with setup_context and jvp would support all of these, but takes 7 to 13 microseconds longer in
# every ordinary call (a step of CBMLLoss has four and takes a millisecond), and torch.compile refuses one with a jvp.
# So each such Function here has a second form in plain torch operations, used where ``transformed`` returns True.


class _Probe(Function):
    """A function without ``setup_context``, which torch.func rejects."""

    @staticmethod
    def forward(ctx: Any, nothing: Tensor) -> None: ...


_NOTHING = torch.zeros(())


def transformed(*tensors: Tensor) -> bool:
    """Whether a transform of torch.func is active, or a tensor has a forward-mode tangent."""
    if torch.compiler.is_compiling():
        return False
    try:
        _Probe.apply(_NOTHING)  # type: ignore[no-untyped-call]
    except RuntimeError:
        return True
    for tensor in tensors:  # noqa: SIM110 - a generator takes more calls
        if forward_ad.unpack_dual(tensor).tangent is not None:  # type: ignore[no-untyped-call]
            return True
    return False


def apply_or_plain(function: type[Function], plain: Callable[..., Any], *arguments: Any) -> Any:
    """Apply a Function, or ``plain`` under torch.func or in forward mode.

    The Function has no ``setup_context`` and no ``jvp``. Ordinary calls cost nothing extra.
    """
    if torch.compiler.is_compiling():
        return function.apply(*arguments)  # type: ignore[no-untyped-call]
    try:
        return function.apply(*arguments)  # type: ignore[no-untyped-call]
    except RuntimeError:  # or NotImplementedError, its subclass, in forward mode
        tensors = [each for each in arguments if isinstance(each, Tensor)]
        if not transformed(*tensors):
            raise
    return plain(*arguments)


def run_eagerly(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function whose shapes depend on values, outside the graph of torch.compile."""
    if not torch.compiler.is_compiling():
        return function(*arguments)
    from .disabled import call

    return call(function, *arguments)
