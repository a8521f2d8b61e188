"""A step of ``CrossBatchMemory`` with a large queue: seconds and peak memory, in a new process.

python -m benchmarks.memory_queue --rows 1000000 --batch 512 --size 128
"""

import argparse
import resource
import time

import torch

from pml_ext import CBMLLoss, CrossBatchMemory, TiledMultiSimilarityLoss

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag, default in (("rows", 1_000_000), ("batch", 512), ("size", 128), ("threads", 2)):
        parser.add_argument(f"--{flag}", type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for loss in (CBMLLoss(), TiledMultiSimilarityLoss()):
        memory = CrossBatchMemory(loss, options.size, options.rows)
        memory.add_to_memory(torch.randn(options.rows, options.size), torch.randint(0, 10_000, (options.rows,)))
        x = torch.randn(options.batch, options.size, requires_grad=True)
        labels = torch.randint(0, 10_000, (options.batch,))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.perf_counter()
        memory(x, labels).backward()
        seconds = time.perf_counter() - start
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        queue = memory.embedding_memory.numel() * 4 / 2**20
        print(f"{type(loss).__name__}: {seconds:.1f} s, {grown:.0f} MiB above the queue's {queue:.0f} MiB", flush=True)
