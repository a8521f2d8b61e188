"""What collectives give in two processes; run as a script, once a process."""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn

from pml_ext import DistributedBatchSampler, MPerLabelSampler
from pml_ext.distributed.gather import SharedTiles, tiles_shared
from pml_ext.distributed.processes import (
    collective_device,
    from_rank_0,
    from_ranks,
    gather_objects,
    max_over_ranks,
    num_processes,
    process_group,
    rank,
    rank_0_first,
    wait_for_all_ranks,
)
from pml_ext.pairwise import tiles
from pml_ext_train.training.batch_norm import JoinedBatchNorm

IMAGES = torch.randn(7, 3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
PARTS = (slice(0, 5), slice(5, 7))  # of the images
EPOCHS = 2


def batch_norm(**settings):
    """A batch norm whose scale and shift change something."""
    layer = JoinedBatchNorm(3, **settings).double()
    if layer.affine:
        nn.init.constant_(layer.weight, 1.5)
        nn.init.constant_(layer.bias, 0.25)
    return layer


def normalized(layer, images, part=slice(None)):
    """Outputs, the gradients of images and of the layer in the last of two calls, and the layer's buffers."""
    for _ in range(EPOCHS):
        layer.zero_grad()
        x = images[part].clone().requires_grad_()
        y = layer(x)
        (y * images.flip(2).exp()[part]).sum().backward()
    gradients = [parameter.grad for parameter in layer.parameters()]
    return {"y": y.detach(), "x": x.grad, "own": gradients, "buffers": list(layer.buffers())}


def of_batch_norm(mine):
    found = {}
    for name, settings in SETTINGS.items():
        found[name] = normalized(batch_norm(**settings), IMAGES, PARTS[mine])
    found["half"] = normalized(batch_norm().float(), IMAGES.bfloat16(), PARTS[mine])
    return found


SETTINGS = {"plain": {}, "averaging": {"momentum": None}, "bare": {"affine": False, "track_running_stats": False}}


def of_processes(mine):
    return {
        "number": num_processes(),
        "rank": rank(),
        "from rank 0": from_rank_0({"rank": mine}),
        "from ranks": from_ranks(f"of {mine}"),
        "gathered": gather_objects(10 * mine),
        "greatest": max_over_ranks(5 - 3 * mine),
        "device": str(collective_device(torch.device("meta"))),
    }


def of_order(mine):
    """Times at which a process came, went on, and was in a block that rank 0 runs first; each is late once."""
    if mine == 1:
        time.sleep(0.2)
    times = {"came": time.monotonic()}
    wait_for_all_ranks()
    times["went on"] = time.monotonic()
    with rank_0_first():
        times["entered"] = time.monotonic()
        if mine == 0:
            time.sleep(0.2)
        times["left"] = time.monotonic()
    return times


def of_gather(mine):
    x = torch.ones(3 - 2 * mine, 2, requires_grad=True)
    sharing = SharedTiles()
    found = {"part": [sharing.part(count) for count in (1, 2, 5)]}
    with tiles_shared(x, None):
        found["shared"] = tiles.sharing() is not None
    with tiles_shared(x if mine else x.detach(), None):
        found["unlike"] = tiles.sharing() is not None
    return found


def of_sampling(mine):
    """Batches of both processes together, and this process's parts; samplers have a seed for each process."""
    one = DistributedBatchSampler(MPerLabelSampler([0, 1] * 10, 8, m=2, seed=0), 8, num_processes=1, rank=0)
    parts = DistributedBatchSampler(MPerLabelSampler([0, 1] * 10, 8, m=2, seed=mine), 8)
    return {"one": list(one), "parts": list(parts)}


def main(folder):
    with process_group("cpu"):
        mine = dist.get_rank()
        found = {"processes": of_processes(mine), "gather": of_gather(mine), "batch norm": of_batch_norm(mine)}
        found["sampling"] = of_sampling(mine)
        found["order"] = of_order(mine)
        torch.save(found, f"{folder}/rank-{mine}.pt")
        dist.barrier()


if __name__ == "__main__":
    main(sys.argv[1])
