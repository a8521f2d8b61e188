"""Losses and miners over several processes: value and gradients of one process on the joined batch."""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from pytorch_metric_learning.losses import BaseLossWrapper
from pytorch_metric_learning.miners import BaseMiner
from pytorch_metric_learning.utils.module_with_records import ModuleWithRecords
from torch import Tensor, nn

from . import registry
from .losses import call_loss, inside
from .pairwise import check_batch, check_indices_tuple, check_references
from .settings import check_flag

_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
           torch.int8, torch.uint8, torch.bool)  # fmt: skip


def num_processes() -> int:
    """How many processes there are: 1 where no process group was started."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """This process's number, from 0."""
    return dist.get_rank() if num_processes() > 1 else 0


@contextlib.contextmanager
def process_group(device: str) -> Iterator[None]:
    """The group of the processes that ``torchrun`` started, if it did; it ends with the block, unless that fails.

    Args:
        device: ``"cpu"`` (gloo) or ``"cuda"`` (NCCL, and gloo for what lies on the CPU).
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or dist.is_initialized():
        yield
        return
    backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
    # Rank 0 tests alone while the others wait; torchrun ends them should it fail.
    dist.init_process_group(backend, timeout=datetime.timedelta(days=2))
    yield
    dist.destroy_process_group()


def from_rank_0(value: Any) -> Any:
    """What rank 0 passes, in every process.

    Args:
        value: anything that can be pickled; that of the other ranks is not looked at.
    """
    if num_processes() == 1:
        return value
    everyone = [value]
    dist.broadcast_object_list(everyone, src=0)
    return everyone[0]


class _Capabilities:
    """Those of the wrapped loss."""

    def __get__(self, instance: DistributedLoss | None, owner: type) -> frozenset[str]:
        if instance is None:
            return frozenset({"labels", "indices_tuple", "references"})
        return registry.capabilities(inside(instance.loss))


class DistributedLoss(BaseLossWrapper, ModuleWithRecords):  # type: ignore[misc]
    r"""A loss over the batches of all processes, joined in the order of their ranks.

    Every process gets the value that one process gets on the joined batch. After DistributedDataParallel's mean over
    the processes, the network has the gradients of that one process, and so has the loss: its parameters, the targets
    of its regularizers, its learned metric, whether DistributedDataParallel is around the loss or not. For that the
    gradient with respect to this process's embeddings is ``W`` times that of the joined loss (with ``W`` processes),
    since the mean divides by ``W`` what only one process contributes; the loss's parameters get their gradient as it
    is, since every process contributes all of it.

    Batches may differ in size from process to process. Random parts (dropout in a learned metric, sampled triplets) are
    alike: all use the state of torch's generators of rank 0, so they are those of one process too. A loss with a memory
    goes inside, ``DistributedLoss(CrossBatchMemory(loss, ...))``: every process then has the same memory. At the first
    call the loss's parameters and buffers become those of rank 0. Without a process group, or with one process, it is
    the loss itself.

    *Cost:* the loss on the joined batch in every process, and three collective operations a call: sizes, the
    generator's state (5 kB), the batches, padded to the largest.

    Args:
        loss: a loss of PML or of ours, a wrapper around one, or one inside DistributedDataParallel.
        efficient: here for what was written for PML's ``DistributedLossWrapper``, where True compares a process's own
            rows alone with all rows, which saves memory and gives other gradients. This loss gives the gradients of
            the joined batch, at the cost above, whether it is True or False.

    Raises:
        TypeError: not a module, or ``efficient`` neither True nor False.

    Example:
        >>> from pytorch_metric_learning.losses import ProxyAnchorLoss
        >>> DistributedLoss(ProxyAnchorLoss(2, 4))(torch.eye(4), torch.tensor([0, 0, 1, 1])).shape
        torch.Size([])
    """

    capabilities = _Capabilities()
    joins_processes = True

    def __init__(self, loss: nn.Module, efficient: bool = False) -> None:
        if not isinstance(loss, nn.Module):
            raise TypeError(f"loss of DistributedLoss must be an object such as ContrastiveLoss(); got {loss!r}")
        check_flag(self, "efficient", efficient)
        super().__init__(loss=loss)
        self.loss = loss
        self.efficient = efficient
        self._alike = False

    @classmethod
    def check_loss_support(cls, loss_name: str) -> None:
        """Nothing: any loss will do."""

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
        enqueue_mask: Tensor | None = None,
    ) -> Any:
        """The loss of the joined batch.

        Args:
            embeddings: this process's part, ``[B, D]``; B may differ between processes, and be 0.
            labels: ``[B]``, integers.
            indices_tuple: what a :class:`DistributedMiner` found: rows of the joined batch, alike in all processes.
            ref_emb: this process's part of the references, ``[R, D]``.
            ref_labels: ``[R]``.
            enqueue_mask: ``[B]``, boolean, for a :class:`pml_ext.CrossBatchMemory`.

        Raises:
            TypeError: an argument is no tensor, or of a wrong kind.
            ValueError: a wrong shape; embeddings that differ in size or dtype between processes; an
                ``indices_tuple`` that does.
        """
        if num_processes() == 1:
            return call_loss(self.loss, embeddings, labels, indices_tuple, ref_emb, ref_labels, enqueue_mask)
        check_batch(embeddings, labels)
        check_indices_tuple(indices_tuple)
        check_references(embeddings, ref_emb, ref_labels)
        if not self._alike:
            _take_state_of_rank_0(self.loss)
            self._alike = True
        batch = {"embeddings": embeddings, "labels": labels, "ref_emb": ref_emb, "ref_labels": ref_labels,
                 "enqueue_mask": enqueue_mask}  # fmt: skip
        joined = join(batch, indices_tuple)
        with _random_as_rank_0(embeddings.device):
            return call_loss(self.loss, indices_tuple=indices_tuple, **joined)


class DistributedMiner(BaseMiner):  # type: ignore[misc]
    """A miner over the batches of all processes, for :class:`DistributedLoss`.

    The miner runs in rank 0 on the joined batch; every process gets what it found, as rows of the joined batch, and
    what the miner recorded (``num_triplets`` and the like, more with ``collect_stats``) as its own miner's. Without a
    process group, or with one process, it is the miner itself.

    Args:
        miner: a miner of PML or of ours.
        efficient: here for what was written for PML's ``DistributedMinerWrapper``, where True mines partners for a
            process's own rows. This miner finds those of all rows, which :class:`DistributedLoss` wants, whether it is
            True or False.

    Raises:
        TypeError: not a module, or ``efficient`` neither True nor False.
    """

    def __init__(self, miner: nn.Module, efficient: bool = False) -> None:
        if not isinstance(miner, nn.Module):
            raise TypeError(
                f"miner of DistributedMiner must be an object such as MultiSimilarityMiner(); got {miner!r}"
            )
        check_flag(self, "efficient", efficient)
        super().__init__()
        self.miner = miner
        self.efficient = efficient

    @property
    def capabilities(self) -> frozenset[str]:
        """Those of the miner."""
        return registry.capabilities(self.miner)

    @torch.no_grad()
    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Any:
        """Indices of pairs or triplets of the joined batch.

        Args:
            embeddings: this process's part, ``[B, D]``.
            labels: ``[B]``, integers.
            ref_emb: this process's part of the references, ``[R, D]``.
            ref_labels: ``[R]``.

        Raises:
            TypeError: an argument is no tensor, or of a wrong kind.
            ValueError: a wrong shape, or embeddings that differ in size or dtype between processes.
        """
        self.reset_stats()
        found = self._mine(embeddings, labels, ref_emb, ref_labels)
        if len(found) in (3, 4):
            self.output_assertion(found)  # which counts them
        return found

    def _mine(self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None, ref_labels: Tensor | None) -> Any:
        if num_processes() == 1:
            optional = [] if ref_emb is None else [ref_emb, ref_labels]
            return self.miner(embeddings, labels, *optional)
        check_batch(embeddings, labels)
        check_references(embeddings, ref_emb, ref_labels)
        joined = join({"embeddings": embeddings, "labels": labels, "ref_emb": ref_emb, "ref_labels": ref_labels})
        found: list[Tensor] = []
        if rank() == 0:
            references = [] if ref_emb is None else [joined["ref_emb"], joined["ref_labels"]]
            found = [index.to(embeddings.device) for index in self.miner(joined["embeddings"], joined["labels"],
                                                                         *references)]  # fmt: skip
        lengths, recorded = from_rank_0(([len(index) for index in found], _recorded(self.miner)))
        _set_recorded(self.miner, recorded)
        return _broadcast(found, lengths, embeddings.device)


_COUNTS = ("num_pos_pairs", "num_neg_pairs", "num_triplets")  # of PML's miners, statistics or not


def _recorded(miner: nn.Module) -> list[dict[str, Any]]:
    """What each module of a miner recorded of its last call."""
    each = []
    for module in miner.modules():
        names = {*_COUNTS, *getattr(module, "_record_these_stats", ())} & vars(module).keys()
        each.append({name: _on_cpu(getattr(module, name)) for name in names})
    return each


def _set_recorded(miner: nn.Module, recorded: list[dict[str, Any]]) -> None:
    for module, values in zip(miner.modules(), recorded, strict=True):
        for name, value in values.items():
            setattr(module, name, value)


def join(batch: dict[str, Tensor | None], indices_tuple: Sequence[Tensor] | None = None) -> dict[str, Any]:
    """Every tensor of all processes, joined in the order of their ranks.

    Args:
        batch: tensors by name, equal in dtype and in all but the first dimension in all processes, or None.
        indices_tuple: something that must be alike in all processes, or None.

    Returns:
        The joined tensors. Through this process's own floating point rows goes a gradient, times the number of
        processes.

    Raises:
        ValueError: processes differ in more than the number of rows; the text names the first such.
    """
    names = list(batch)
    headers = _gathered(_header(batch, indices_tuple))
    _check_alike(names, headers)
    present = [name for name in names if batch[name] is not None]
    own = [batch[name] for name in present]
    parts = _gather_bytes([tensor.detach() for tensor in own if tensor is not None],
                          [[_size(header, names.index(name)) for name in present] for header in headers])  # fmt: skip
    joined: dict[str, Any] = dict.fromkeys(names)
    for number, (name, tensor) in enumerate(zip(present, own, strict=True)):
        assert tensor is not None
        each = [part[number] for part in parts]
        each[rank()] = _scale_gradient(tensor, len(headers)) if tensor.requires_grad else tensor
        joined[name] = torch.cat(each)
    return joined


_FIELDS = 3  # of a tensor's header: rows, columns (-1 where there is one dimension), dtype; -2 where there is none


def _header(batch: dict[str, Tensor | None], indices_tuple: Sequence[Tensor] | None) -> Tensor:
    numbers: list[int] = []
    device = torch.device("cpu")
    for tensor in batch.values():
        if tensor is None:
            numbers += [-2, -2, -2]
        else:
            device = tensor.device
            numbers += [len(tensor), tensor.shape[1] if tensor.ndim > 1 else -1, _DTYPES.index(tensor.dtype)]
    sums = [len(indices_tuple or ()), *(int(index.sum()) for index in indices_tuple or ())]
    numbers += (sums + [0] * 5)[:5]
    return torch.tensor(numbers, device=_collective_device(device))


def _size(header: list[int], number: int) -> list[int]:
    rows, columns = header[_FIELDS * number : _FIELDS * number + 2]
    return [rows] if columns == -1 else [rows, columns]


def _check_alike(names: list[str], headers: list[list[int]]) -> None:
    for other, header in enumerate(headers[1:], start=1):
        for number, name in enumerate(names):
            (_, columns0, dtype0), (_, columns, dtype) = (
                each[_FIELDS * number : _FIELDS * (number + 1)] for each in (headers[0], header)
            )
            if (columns0, dtype0) != (columns, dtype):
                raise ValueError(
                    f"{name} must be alike in all processes but for the number of rows; rank 0 has "
                    f"{_described(columns0, dtype0)}, rank {other} {_described(columns, dtype)}"
                )
        if headers[0][-5:] != header[-5:]:
            raise ValueError(
                "indices_tuple must hold rows of the joined batch and be alike in all processes, but that of rank "
                f"{other} differs from that of rank 0; mine with DistributedMiner(miner)"
            )


def _described(columns: int, dtype: int) -> str:
    if columns == -2:
        return "none"
    return f"{_DTYPES[dtype]}" + (f" of {columns} columns" if columns >= 0 else "")


def _gathered(header: Tensor) -> list[list[int]]:
    each = [torch.empty_like(header) for _ in range(num_processes())]
    dist.all_gather(each, header)
    return torch.stack(each).tolist()  # type: ignore[no-any-return]


def _gather_bytes(own: list[Tensor], sizes: list[list[list[int]]]) -> list[list[Tensor]]:
    """The tensors of all processes, sent as bytes in one piece, padded to the longest."""
    lengths = [
        sum(torch.Size(size).numel() * tensor.element_size() for size, tensor in zip(each, own, strict=True))
        for each in sizes
    ]
    device = own[0].device
    collective = _collective_device(device)
    payload = torch.zeros(max(lengths), dtype=torch.uint8, device=collective)
    if lengths[rank()]:
        payload[: lengths[rank()]] = torch.cat([_bytes(tensor) for tensor in own]).to(collective)
    received = [torch.empty_like(payload) for _ in sizes]
    dist.all_gather(received, payload)
    parts = []
    for data, each in zip(received, sizes, strict=True):
        offset, tensors = 0, []
        for size, like in zip(each, own, strict=True):
            length = torch.Size(size).numel() * like.element_size()
            piece = data[offset : offset + length].to(device).clone()  # of its own, so aligned for any dtype
            tensors.append(piece.view(like.dtype).reshape(size) if length else like.new_empty(size))
            offset += length
        parts.append(tensors)
    return parts


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def _broadcast(tensors: list[Tensor], lengths: list[int], device: torch.device) -> tuple[Tensor, ...]:
    """Index tensors of rank 0, of these lengths, in all processes."""
    collective = _collective_device(device)
    if rank() == 0:
        joined = torch.cat(tensors).to(collective, torch.long)
    else:
        joined = torch.empty(sum(lengths), dtype=torch.long, device=collective)
    dist.broadcast(joined, src=0)
    return torch.split(joined.to(device), lengths)


def _collective_device(device: torch.device) -> torch.device:
    """Where the tensors of a collective operation lie: gloo alone wants them on the CPU."""
    return torch.device("cpu") if dist.get_backend() == "gloo" else device


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: int) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return grad * ctx.factor, None


def _scale_gradient(x: Tensor, factor: int) -> Tensor:
    scaled: Tensor = _ScaleGradient.apply(x, factor)  # type: ignore[no-untyped-call]
    return scaled


@torch.no_grad()
def _take_state_of_rank_0(module: nn.Module) -> None:
    """Parameters and buffers of rank 0, as DistributedDataParallel does when it is made."""
    state = module.state_dict()
    if not state:
        return
    sent = [{name: _on_cpu(value) for name, value in state.items()} if rank() == 0 else {}]
    dist.broadcast_object_list(sent, src=0)
    if rank() != 0:
        module.load_state_dict(sent[0])


def _on_cpu(value: Any) -> Any:
    return value.cpu() if isinstance(value, Tensor) else value


@contextlib.contextmanager
def _random_as_rank_0(device: torch.device) -> Iterator[None]:
    """The generators of torch as they stand in rank 0; afterwards every other process goes on with its own."""
    devices = [device] if device.type == "cuda" else []
    states = [torch.get_rng_state(), *(torch.cuda.get_rng_state(each) for each in devices)]
    collective = _collective_device(device)
    shared = torch.cat(states).to(collective)
    dist.broadcast(shared, src=0)
    if rank() == 0:
        yield
        return
    with torch.random.fork_rng(devices=devices):
        cpu, *cuda = torch.split(shared.cpu(), [len(state) for state in states])
        torch.set_rng_state(cpu.clone())
        for each, state in zip(devices, cuda, strict=True):
            torch.cuda.set_rng_state(state.clone(), each)
        yield


class JoinedBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch norm with the statistics of all processes' batches, as one process has on the joined batch.

    torch's ``SyncBatchNorm`` does that on GPUs alone; :func:`synchronize_batch_norm` takes the one that fits.
    """

    def _check_input_dim(self, x: Tensor) -> None:
        if x.ndim < 2:
            raise ValueError(f"expected an input of two dimensions or more; got {x.ndim}")

    def forward(self, x: Tensor) -> Tensor:
        """The normalised input, ``[B, C, ...]``."""
        self._check_input_dim(x)
        if not self.training or num_processes() == 1:
            return super().forward(x)
        over = [dimension for dimension in range(x.ndim) if dimension != 1]
        shape = [1, -1] + [1] * (x.ndim - 2)
        count = x.numel() / x.shape[1]
        total = _sum_over_processes(torch.cat([x.sum(over), x.new_tensor([count])]))
        mean, joined = total[:-1] / total[-1], total[-1].detach()
        centred = x - mean.view(shape)
        variance = _sum_over_processes(centred.square().sum(over)) / joined
        self._keep(mean.detach(), variance.detach() * joined / (joined - 1).clamp(min=1))
        result = centred * (variance + self.eps).rsqrt().view(shape)
        return result * self.weight.view(shape) + self.bias.view(shape) if self.affine else result

    @torch.no_grad()
    def _keep(self, mean: Tensor, variance: Tensor) -> None:
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        factor = self.momentum if self.momentum is not None else 1 / int(self.num_batches_tracked)
        self.running_mean.lerp_(mean, factor)
        self.running_var.lerp_(variance, factor)


class _SumOverProcesses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        total = x.contiguous().clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        total = grad.contiguous().clone()
        dist.all_reduce(total)
        return total


def _sum_over_processes(x: Tensor) -> Tensor:
    total: Tensor = _SumOverProcesses.apply(x)  # type: ignore[no-untyped-call]
    return total


def synchronize_batch_norm(module: nn.Module, device: torch.device) -> nn.Module:
    """A network whose batch norms have the statistics of the joined batch: torch's SyncBatchNorm on GPUs, ours else.

    Args:
        module: the network; parameters and buffers stay the same objects.
        device: where it runs.
    """
    if device.type == "cuda":
        return nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-any-return,no-untyped-call]
    if type(module) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
        module.__class__ = JoinedBatchNorm
    for child in module.children():
        synchronize_batch_norm(child, device)
    return module
