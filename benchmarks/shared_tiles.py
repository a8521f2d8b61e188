"""A loss shared by processes, compared with the whole loss in each of them.

    python -m benchmarks.shared_tiles --processes 2 --batch 4096 --size 128

Both are timed in every process, in turns, with one thread. Prints the median of the slowest process, and the ratio.
"""

import argparse
import os
import socket
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import pml_ext
from pml_ext import DistributedLoss

LOSSES = ("CBMLLoss", "AngularLoss", "BatchAllTripletLoss", "TiledMultiSimilarityLoss")


def timed(loss, embeddings, labels):
    x = embeddings.clone().requires_grad_()
    dist.barrier()
    start = time.perf_counter()
    loss(x, labels).backward()
    return time.perf_counter() - start


def work(rank, options, port):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=options.processes)
    torch.set_num_threads(1)
    whole = torch.randn(options.batch, options.size, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(options.batch) // options.per_class
    own = slice(rank * options.batch // options.processes, (rank + 1) * options.batch // options.processes)
    for name in LOSSES:
        alone = getattr(pml_ext, name)()
        shared = DistributedLoss(getattr(pml_ext, name)())
        seconds = {"alone": [], "shared": []}
        for turn in range(options.repeats + 1):
            one = timed(alone, whole, labels)
            other = timed(shared, whole[own], labels[own])
            if turn:  # the first warms up
                seconds["alone"].append(one)
                seconds["shared"].append(other)
        medians = torch.tensor([statistics.median(times) for times in seconds.values()])
        dist.all_reduce(medians, dist.ReduceOp.MAX)
        if rank == 0:
            one, other = medians.tolist()
            print(f"{name}: {one:.3f} s in each process alone, {other:.3f} s shared, {other / one:.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag, default in (("processes", 2), ("batch", 4096), ("size", 128), ("per-class", 4), ("repeats", 7)):
        parser.add_argument(f"--{flag}", type=int, default=default)
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        free = place.getsockname()[1]
    arguments = parser.parse_args()
    mp.spawn(work, (arguments, free), arguments.processes)
