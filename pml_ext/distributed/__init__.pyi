from .allocator import keep_freed_memory as keep_freed_memory, release_freed_memory as release_freed_memory
from .devices import (
    Precision as Precision,
    autocast as autocast,
    check_precision as check_precision,
    choose_device as choose_device,
)
from .gather import join as join
from .losses_and_miners import DistributedLoss as DistributedLoss, DistributedMiner as DistributedMiner
from .processes import (
    from_rank_0 as from_rank_0,
    from_ranks as from_ranks,
    max_over_ranks as max_over_ranks,
    num_processes as num_processes,
    process_group as process_group,
    rank as rank,
    rank_0_first as rank_0_first,
    share_of as share_of,
    wait_for_all_ranks as wait_for_all_ranks,
)
from .sampling import DistributedBatchSampler as DistributedBatchSampler
from .threads import threads_for as threads_for
