"""Losses, miners and batch norm over several processes, and the exchange of tensors and objects between them."""

from typing import TYPE_CHECKING

from ..lazy import lazily

if TYPE_CHECKING:
    from .allocator import keep_freed_memory as keep_freed_memory
    from .batch_norm import JoinedBatchNorm as JoinedBatchNorm
    from .batch_norm import synchronize_batch_norm as synchronize_batch_norm
    from .gather import join as join
    from .losses_and_miners import DistributedLoss as DistributedLoss
    from .losses_and_miners import DistributedMiner as DistributedMiner
    from .processes import from_rank_0 as from_rank_0
    from .processes import from_ranks as from_ranks
    from .processes import max_over_ranks as max_over_ranks
    from .processes import num_processes as num_processes
    from .processes import process_group as process_group
    from .processes import rank as rank
    from .processes import rank_0_first as rank_0_first
    from .processes import wait_for_all_ranks as wait_for_all_ranks
    from .sampling import DistributedBatchSampler as DistributedBatchSampler

__getattr__ = lazily(__name__)
