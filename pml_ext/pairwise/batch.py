"""Checks of the arguments of losses and miners, and computation in float32 or float64 for inputs of any dtype."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from .transforms import apart

_LEAST_HALF = 2.0**-8  # a shorter row of float16 has the gradient of a row of this length


def check_batch(embeddings: Any, labels: Any = None, *, names: tuple[str, str] = ("embeddings", "labels")) -> None:
    """Check embeddings ``[B, D]``, floating point, and labels ``[B]``, integers or booleans, by dtype and shape.

    Floating point labels, which PML takes, are refused: float32 merges 16777216 and 16777217. ``names`` appear in
    the messages. Raise TypeError for a wrong dtype or a value that is no tensor, ValueError for a wrong shape.
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
    text = (
        f"{labels_what} must be a tensor of integers of shape ({len(embeddings)},), one for each row of {what}; got "
        f"{describe(labels)}"
    )
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex():
        raise TypeError(f"{text}; type {labels_what}.long() where they are floating point")
    if labels.shape != (len(embeddings),):
        raise ValueError(text)


def check_indices_tuple(indices_tuple: Any) -> Any:
    """Return an ``indices_tuple`` with arrays and lists as tensors; raise TypeError if it is no tuple or list.

    References are a common mistake.
    """
    if indices_tuple is not None and not isinstance(indices_tuple, (tuple, list)):
        raise TypeError(
            "indices_tuple, the third argument of a loss, must be the tuple of index tensors that a miner "
            f"gives, or None; got {describe(indices_tuple)}. References go by name: type ref_emb=..., "
            "ref_labels=..."
        )
    if indices_tuple is None or type(indices_tuple) not in (tuple, list):  # or a named tuple of ours
        return indices_tuple
    try:
        return tuple(x if isinstance(x, Tensor) else torch.as_tensor(x, dtype=torch.long) for x in indices_tuple)
    except (TypeError, ValueError) as error:
        found = ", ".join(describe(x) for x in indices_tuple)
        raise TypeError(f"indices_tuple must hold tensors, arrays or lists of integers; got {found}") from error


def check_references(embeddings: Tensor, ref_emb: Any, ref_labels: Any) -> None:
    """Check references ``[R, D]`` and their labels against each other and against embeddings ``[B, D]``."""
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
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"a {type(value).__name__} of length {len(value)}"
    return f"{value!r} ({type(value).__name__})"


def to_full_precision(x: Tensor, normalized: bool = False) -> Tensor:
    """Return ``x`` itself if it is float32 or float64, else ``x`` in float32.

    If the rows of ``x`` will be ``normalized``, a float16 row shorter than 2^-8 gets the gradient of a row of that
    length, at most 256 times that of the normalized row, since the largest float16 is 65,504.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    if not normalized or x.dtype != torch.float16:
        return wide
    fixed = wide.detach()
    share: Tensor = (torch.linalg.vector_norm(fixed, dim=1, keepdim=True) / _LEAST_HALF).clamp(max=1)
    return fixed + (wide - fixed) * share


def pair_to_full_precision(
    embeddings: Tensor, ref_emb: Tensor | None, normalized: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Return embeddings and references in one dtype, float32 or float64; the same object if they are the same."""
    first = to_full_precision(embeddings, normalized)
    if ref_emb is None or ref_emb is embeddings:
        return first, None if ref_emb is None else first
    second = to_full_precision(ref_emb, normalized)
    dtype = torch.promote_types(first.dtype, second.dtype)
    return first.to(dtype), second.to(dtype)


def normalizes(module: Any) -> bool:
    """Return whether a loss, or the loss inside a wrapper, compares normalized embeddings."""
    while (distance := getattr(module, "distance", None)) is None and hasattr(module, "loss"):
        module = module.loss
    return bool(getattr(distance, "normalize_embeddings", False))


def with_bad_input(value: Any, *inputs: Tensor | None) -> Any:
    """Return a loss's value, or NaN if any row of an input has NaN or infinity, even one without partners."""
    if not isinstance(value, Tensor):
        return value
    for x in inputs:
        if x is not None and x.numel():
            least, greatest = x.detach().aminmax()
            value = value + (0 * least + 0 * greatest)
    return value


# Computed at import, since torch.compile of torch 2.4 cannot trace is_autocast_available.
_WITH_AUTOCAST = frozenset(name for name in ("cpu", "cuda", "mps", "xpu") if torch.amp.is_autocast_available(name))


def autocast_off(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context without autocast on a device, if the device has autocast at all."""
    if device.type not in _WITH_AUTOCAST:
        return nullcontext()
    if not (torch.compiler.is_compiling() or torch.is_autocast_enabled(device.type)):  # the query breaks a graph
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


class FullPrecisionForward:
    """Mixin before PML's loss base that checks the batch and runs loss, regularizer and reducer in float32 or float64.

    A NaN or infinite number in any row of embeddings or references makes the value NaN. A loss whose only capability
    is ``"labels"`` refuses a call without labels or with an indices_tuple or references.
    """

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Any:
        """Return the reduced loss of embeddings ``[B, D]``, of any floating point dtype, as in PML.

        Labels ``[B]`` may be None with an ``indices_tuple``, of triplets (three index tensors) or pairs (four).
        References ``[R, D]`` and their labels ``[R]`` replace the batch as partners. An argument of a wrong type
        or shape raises TypeError or ValueError.
        """
        others = (each is not None for each in (indices_tuple, ref_emb, ref_labels))
        if getattr(self, "capabilities", ()) == {"labels"} and (labels is None or any(others)):
            raise ValueError(f"{type(self).__name__} takes embeddings and labels, no indices_tuple and no references")
        check_batch(embeddings, labels)
        indices_tuple = check_indices_tuple(indices_tuple)
        check_references(embeddings, ref_emb, ref_labels)
        with autocast_off(embeddings.device):
            given, normalized = ref_emb is not embeddings, normalizes(self)
            embeddings, ref_emb = pair_to_full_precision(embeddings, ref_emb, normalized)
            # booleans cannot be sorted and looked up everywhere, int64 can
            labels, ref_labels = (y if y is None else y.long() for y in (labels, ref_labels))
            value = super().forward(embeddings, labels, indices_tuple, ref_emb, ref_labels)  # type: ignore[misc]
            return with_bad_input(value, embeddings, ref_emb if given else None)


class FullPrecisionMining:
    """Mixin before PML's miner base that checks the batch and mines in float32 or float64."""

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Any:
        """Return indices of pairs or triplets, in row-major order; arguments and errors are those of a loss."""
        check_batch(embeddings, labels)
        check_references(embeddings, ref_emb, ref_labels)
        if labels is None or (ref_emb is not None and ref_labels is None):
            missing = "labels" if labels is None else "ref_labels"
            raise ValueError(f"{missing} must be given: {type(self).__name__} compares them to mine")
        with autocast_off(embeddings.device):
            embeddings, ref_emb = pair_to_full_precision(embeddings, ref_emb)
            ref_labels = ref_labels if ref_labels is None else ref_labels.long()
            return apart(super().forward, embeddings, labels.long(), ref_emb, ref_labels)  # type: ignore[misc]
