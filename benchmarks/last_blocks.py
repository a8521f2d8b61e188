"""Training EfficientNet-Lite0's last blocks from kept activations, or the whole network.

``python -m benchmarks.last_blocks`` (extra ``photos``) prints images per second, the share of trained parameters, and
the size of an image's activations. Weights and images are random.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from pml_ext import keep_freed_memory
from pml_ext.pml import losses
from pml_ext_train.networks.cut import activation_shape, frozen_stem
from pml_ext_train.networks.memory_format import use_channels_last
from pml_ext_train.networks.trunks import efficientnet_lite

CLASSES = 16
DIMENSIONS = 512


def stepper(network: nn.Module, inputs: Callable[[], Tensor], labels: Tensor) -> Callable[[], None]:
    """A step of multi-similarity loss and AdamW; batch norms keep their statistics."""
    loss = losses.MultiSimilarityLoss()
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        loss(network(inputs()), labels).backward()
        optimizer.step()

    network.eval()
    return step


def seconds(step: Callable[[], None]) -> float:
    started = time.perf_counter()
    step()
    return time.perf_counter() - started


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--size", type=int, default=160, help="pixels")
    options.add_argument("--batch", type=int, default=64)
    options.add_argument("--until", default="blocks.5")
    options.add_argument("--steps", type=int, default=8)
    given = options.parse_args()
    keep_freed_memory("cpu")

    trunk = efficientnet_lite("efficientnet-lite0", 3, given.size)
    memory_format = use_channels_last(trunk, 3, given.size)
    head = nn.Linear(1280, DIMENSIONS)
    labels = torch.arange(given.batch) % CLASSES
    images = torch.randn(given.batch, 3, given.size, given.size).contiguous(memory_format=memory_format)
    whole = stepper(nn.Sequential(trunk, head), lambda: images, labels)
    all_parameters = sum(parameter.numel() for parameter in trunk.parameters())

    parts = frozen_stem(trunk, given.until)
    shape = activation_shape(parts.stem, 3, given.size, torch.device("cpu"))
    kept = torch.randn(given.batch, *shape).half()
    last = stepper(nn.Sequential(parts.rest, head), lambda: kept.float(), labels)
    trained = sum(parameter.numel() for parameter in parts.rest.parameters())

    times: dict[str, list[float]] = {"whole": [], "last": []}
    for number in range(given.steps + 1):
        trunk.requires_grad_(True)
        whole_seconds = seconds(whole)
        parts.stem.requires_grad_(False)
        last_seconds = seconds(last)
        if number > 0:  # the first warms up
            times["whole"].append(whole_seconds)
            times["last"].append(last_seconds)
    whole_rate = given.batch / statistics.median(times["whole"])
    last_rate = given.batch / statistics.median(times["last"])
    print(f"whole network:           {whole_rate:7.1f} images/s")
    print(f"last blocks, from {given.until}: {last_rate:5.1f} images/s, {last_rate / whole_rate:.1f} times as many")
    print(f"parameters that train after the cut: {trained / all_parameters:.0%}")
    print(f"activations of an image: {2 * math.prod(shape) / 1000:.1f} KB in float16")


if __name__ == "__main__":
    main()
