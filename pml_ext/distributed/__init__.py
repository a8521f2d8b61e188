"""Several processes: what they are, what they share, losses, miners and batch norm over all of them."""

from typing import TYPE_CHECKING

from ..lazy import lazily

if TYPE_CHECKING:
    from .batch_norm import JoinedBatchNorm, synchronize_batch_norm
    from .gather import join
    from .losses_and_miners import DistributedLoss, DistributedMiner
    from .processes import from_rank_0, from_ranks, most_of_ranks, num_processes, process_group, rank

__getattr__ = lazily(__name__)

__all__ = [
    "DistributedLoss",
    "DistributedMiner",
    "JoinedBatchNorm",
    "from_rank_0",
    "from_ranks",
    "join",
    "most_of_ranks",
    "num_processes",
    "process_group",
    "rank",
    "synchronize_batch_norm",
]
