"""A simulated second device, whose tensors hold their values on the CPU."""

import copy
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

TORCH = str(Path(torch.__file__).parent)
M = TypeVar("M", bound=torch.nn.Module)

DEVICE = torch.device("meta")  # the only other device that every build of torch has
# These operations take tensors of two devices, as on a GPU: copies, and an index on the CPU into a tensor elsewhere.
_COPIES = {"to_copy", "copy"}
_INDEXED = {"index", "unsafe_index", "index_put", "index_put_impl", "unsafe_index_put"}
# The shape of their results depends on values, so that the host waits to learn it.
_SHAPES = {"nonzero", "masked_select", "bincount", "repeat_interleave", "unique"}


class OtherDeviceError(RuntimeError):
    """Tensors of two devices were mixed; the text has the place and the remedy."""


class _Elsewhere(Tensor):
    """A tensor on the second device; ``held`` has its values."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Self:
        about: dict[str, Any] = {"strides": held.stride(), "storage_offset": held.storage_offset(), "dtype": held.dtype}
        return torch.Tensor._make_wrapper_subclass(cls, held.size(), layout=held.layout, device=DEVICE, **about)  # type: ignore[attr-defined,no-any-return]

    def __init__(self, held: Tensor) -> None:
        self.held = held

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any) -> Any:  # type: ignore[override]
        raise OtherDeviceError(f"{func} was called after the second device was left")

    def tolist(self) -> Any:
        """The values by way of the CPU."""
        return self.cpu().tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        """Raise TypeError, as any device but the CPU does."""
        raise TypeError("can't convert a tensor of another device to numpy; call .cpu() first")


class SecondDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Context manager that simulates a second device on a machine that has only a CPU.

    Inside, its name is ``device="meta"``. A tensor created there, or moved there by ``.to``, reports it and keeps its
    values. An operation that mixes it with a CPU tensor of one or more dimensions raises an error, as on a GPU.

    Attributes:
        device: its name, for ``.to(...)``.
        waits: how often the host read a value (``.item()``, ``bool()``, ``.tolist()``, ``.cpu()``), by operation and
            place.
        shapes: how often the host waited for a shape: ``nonzero``, ``unique``, a boolean index.

    Example:
        >>> with SecondDevice() as second:
        ...     x = torch.ones(3).to(second.device)
        ...     total = (x + torch.zeros(3, device=x.device)).sum()
        ...     total.item(), sum(second.waits.values())
        (3.0, 1)
    """

    device = DEVICE

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch asks: with True, the first operation imports its compiler, which takes seconds

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.waits: Counter[str] = Counter()
        self.shapes: Counter[str] = Counter()
        self._factories = _Factories()  # type: ignore[no-untyped-call]

    def __enter__(self) -> Self:
        self._factories.__enter__()  # type: ignore[no-untyped-call]
        return super().__enter__()  # type: ignore[no-any-return,no-untyped-call]

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        self._factories.__exit__(*raised)  # type: ignore[no-untyped-call]

    def clear(self) -> None:
        """Reset both counters."""
        self.waits.clear()
        self.shapes.clear()

    def move(self, module: M) -> M:
        """A copy of a module on the device; references to its parameters stay valid."""
        before = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            return copy.deepcopy(module).to(self.device)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(before)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation on the values that the tensors hold."""
        kwargs = dict(kwargs or {})
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        elsewhere = [tensor for tensor in tensors if isinstance(tensor, _Elsewhere)]
        there = bool(elsewhere)
        if kwargs.get("device") is not None:
            there = _there(kwargs["device"])
            if there:
                kwargs["device"] = torch.device("cpu")
        name = str(func).removeprefix("aten.").partition(".")[0].strip("_")
        if name == "copy":
            there = isinstance(args[0], _Elsewhere)
        if elsewhere:
            _check_one_device(name, args, tensors)
            self._count(name, args, kwargs, there)
        output = func(*_held(args), **_held(kwargs))
        if not there:
            return output
        return _wrapped(output, elsewhere)

    def _count(self, name: str, args: Any, kwargs: dict[str, Any], there: bool) -> None:
        place = _place()
        if name == "local_scalar_dense":
            self.waits[f"a value read at {place}"] += 1
            return
        if name in _COPIES:
            if not there and not kwargs.get("non_blocking"):
                self.waits[f"a copy to the CPU at {place}"] += 1
            return
        kind = "unique" if name.startswith("unique") else name
        if kind in _SHAPES:
            self.shapes[f"{kind} at {place}"] += 1
        elif name in _INDEXED and any(getattr(index, "dtype", None) == torch.bool for index in args[1]):
            self.shapes[f"a boolean index at {place}"] += 1


def _check_one_device(name: str, args: Any, tensors: list[Tensor]) -> None:
    if name in _COPIES:
        return
    if name in _INDEXED:
        tensors = [args[0], *args[2:3]]  # not the index itself
    for tensor in tensors:
        if not isinstance(tensor, _Elsewhere) and tensor.ndim:
            raise OtherDeviceError(
                f"{name} at {_place()} mixes a tensor of shape {tuple(tensor.shape)} on the CPU with one on "
                "another device; make it there: device=embeddings.device"
            )


def _wrapped(output: Any, elsewhere: list[_Elsewhere]) -> Any:
    """An output on the second device; an in-place operation returns its own argument."""
    known = {id(tensor.held): tensor for tensor in elsewhere}
    for leaf in tree_leaves(output):
        if isinstance(leaf, Tensor) and id(leaf) not in known:
            known[id(leaf)] = _Elsewhere(leaf)
    return tree_map(lambda leaf: known.get(id(leaf), leaf), output)


class _Factories(TorchFunctionMode):
    """Mode that keeps the values of Python numbers, which torch would drop on meta."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__) and isinstance(args[0], _Elsewhere):
            return func(args[0], _index(args[1]), *args[2:])
        if func is torch.Tensor.new_tensor and isinstance(args[0], _Elsewhere):
            like, *args = args
            func = torch.tensor
            kwargs = {"dtype": like.dtype, "device": like.device, **kwargs}
        if func not in (torch.tensor, torch.as_tensor, torch.asarray) or isinstance(args[0], Tensor):
            return func(*args, **kwargs)
        data = tree_map_only(_Elsewhere, _Elsewhere.tolist, args[0])
        if not _there(kwargs.get("device")):
            return func(data, *args[1:], **kwargs)
        wanted = kwargs.pop("requires_grad", False)
        return func(data, *args[1:], **{**kwargs, "device": "cpu"}).to(DEVICE).requires_grad_(wanted)


def _index(index: Any) -> Any:
    if isinstance(index, tuple) or (isinstance(index, list) and any(isinstance(part, list) for part in index)):
        return tuple(map(_index, index))
    if isinstance(index, np.ndarray) or (isinstance(index, list) and not any(map(torch.is_tensor, index))):
        return torch.as_tensor(index).to(DEVICE)
    return index


def in_words(counted: Counter[str]) -> str:
    """The counts in words, the most frequent first."""
    return ", ".join(what if count == 1 else f"{what} ({count} times)" for what, count in counted.most_common())


def _there(device: Any) -> bool:
    return device is not None and torch.device(device).type == DEVICE.type


def _held(tree: Any) -> Any:
    return tree_map_only(_Elsewhere, lambda leaf: leaf.held, tree)


def _place() -> str:
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((TORCH, __file__)):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
