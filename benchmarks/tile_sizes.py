"""CPU time of losses in tiles of several sizes, over the dense matrix, in turns."""

import statistics
import time

import torch

from pml_ext import registry

NAMES = ("cbml", "angular", "batch-all-triplets", "tiled-multi-similarity")
SIZES = (32, 64, 128, 256)


def seconds(loss: torch.nn.Module, x: torch.Tensor, labels: torch.Tensor) -> float:
    x.grad = None
    start = time.process_time()
    loss(x, labels).backward()
    return time.process_time() - start


torch.set_num_threads(1)
for batch in (512, 1024, 2048):
    x = torch.randn(batch, 128, generator=torch.Generator().manual_seed(0)).requires_grad_()
    labels = torch.arange(batch) // 4
    for name in NAMES:
        losses = {size: registry.build(name, "loss", tile_size=size) for size in SIZES}
        losses[0] = registry.build(name, "loss")
        losses[0].tiles = None  # the dense matrix, whatever its size
        times: dict[int, list[float]] = {size: [] for size in losses}
        for _ in range(6):
            for size, loss in losses.items():
                times[size].append(seconds(loss, x, labels))
        medians = {size: statistics.median(values[1:]) for size, values in times.items()}
        ratios = ", ".join(f"{size} rows {medians[size] / medians[0]:.2f}" for size in SIZES)
        print(f"{batch} {name}: dense {1e3 * medians[0]:.1f} ms; {ratios}", flush=True)
