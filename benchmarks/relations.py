"""Relations: the cost of label sets, and images of two digits trained with both labels or one.

``python -m benchmarks.relations``: ``--seeds`` trainings of each kind on a CPU.
"""

import argparse
import statistics
import time

import numpy as np
import scipy.stats
import torch
from sklearn.datasets import load_digits

from pml_ext import (
    BatchAllTripletLoss,
    CBMLLoss,
    MPerLabelSampler,
    RetrievalAccuracyCalculator,
    SharedLabel,
    TiledContrastiveLoss,
    TiledMultiSimilarityLoss,
    TiledSupConLoss,
)
from pml_ext_train.networks.trunks import convnet

METRICS = ("both_at_1", "mean_average_precision_at_r", "ndcg_at_10")
LOSSES = (CBMLLoss, TiledMultiSimilarityLoss, TiledContrastiveLoss, TiledSupConLoss, BatchAllTripletLoss)


def cost(turns: int) -> None:
    """Print the time of a step with label sets over one with labels: 1,024 x 512, 100 classes."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1024, 512, generator=generator).requires_grad_()
    labels = torch.arange(1024) % 100
    sets = torch.nn.functional.one_hot(labels, 100) | (torch.rand(1024, 100, generator=generator) < 0.01)

    def seconds(loss: torch.nn.Module, given: torch.Tensor) -> float:
        begun = time.perf_counter()
        for _ in range(10):
            loss(x, given).backward()
        return time.perf_counter() - begun

    for cls in LOSSES:
        for tile_size in (None, 128):
            plain = cls(tile_size=tile_size)
            related = cls(tile_size=tile_size, relation=SharedLabel())
            ratios = [seconds(related, sets) / seconds(plain, labels) for _ in range(turns + 1)][1:]
            tiles = "whole" if tile_size is None else f"tiles of {tile_size}"
            print(f"{cls.__name__}, {tiles}: {statistics.median(ratios):.2f} times the time of labels", flush=True)


def pairs_of_digits(images: np.ndarray, digits: np.ndarray, count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images of two digits side by side, ``[N, 1, 8, 16]``, and their labels, ``[N, 2]``."""
    generator = np.random.default_rng(seed)
    chosen = generator.integers(len(images), size=(count, 2))
    joined = np.concatenate([images[chosen[:, 0]], images[chosen[:, 1]]], axis=2)
    return torch.tensor(joined[:, None] / 8 - 1, dtype=torch.float32), torch.tensor(digits[chosen])


def multi_hot(both: torch.Tensor) -> torch.Tensor:
    """Labels ``[N, 2]`` as sets ``[N, 10]``."""
    return torch.nn.functional.one_hot(both, 10).amax(1)


def trained(kind: str, seed: int, iterations: int) -> dict[str, float]:
    """Metrics of a network trained with both labels, or with the first.

    ``both_at_1``: the share of images whose nearest one has the same labels.
    """
    data = load_digits()
    half = np.random.default_rng(0).permutation(len(data.images))
    train = half[: len(half) // 2]
    test = half[len(half) // 2 :]
    x, both = pairs_of_digits(data.images[train], data.target[train], 4000, seed)
    tested, tested_both = pairs_of_digits(data.images[test], data.target[test], 2000, 1000)
    torch.manual_seed(seed)
    network = torch.nn.Sequential(convnet(1, 16, blocks=2, width=32), torch.nn.LazyLinear(32))
    network(x[:2])
    optimizer = torch.optim.Adam(network.parameters(), 1e-3)
    relation = {"first": None, "sets": SharedLabel(), "graded": SharedLabel(graded=True)}[kind]
    loss = TiledMultiSimilarityLoss(relation=relation)
    labels = both[:, 0] if kind == "first" else multi_hot(both)
    sampler = MPerLabelSampler(labels, batch_size=80, m=8, length_before_new_iter=80 * iterations, seed=seed)
    drawn = torch.tensor(list(sampler)).view(iterations, 80)
    for rows in drawn:
        optimizer.zero_grad()
        loss(network(x[rows]), labels[rows]).backward()
        optimizer.step()
    network.eval()
    with torch.no_grad():
        points = torch.nn.functional.normalize(network(tested))
    sets = multi_hot(tested_both)
    graded = SharedLabel(graded=True)
    found = RetrievalAccuracyCalculator(relation=graded, ndcg_at=(10,), include=METRICS[1:], k="max_bin_count")
    equal = RetrievalAccuracyCalculator(relation=SharedLabel(threshold=1.0), include=("recall_at_1",))
    return found.get_accuracy(points, sets) | {"both_at_1": equal.get_accuracy(points, sets)["recall_at_1"]}


def digits(seeds: int, iterations: int) -> None:
    """Print the metrics of both trainings, and the paired differences."""
    found = {kind: [trained(kind, seed, iterations) for seed in range(seeds)] for kind in ("first", "sets", "graded")}
    for kind, runs in found.items():
        for metric in METRICS:
            values = np.array([100 * run[metric] for run in runs])
            line = f"{kind}, {metric}: {values.mean():.1f} ± {values.std(ddof=1):.1f}"
            if kind != "first":
                gains = values - [100 * run[metric] for run in found["first"]]
                p = scipy.stats.ttest_1samp(gains, 0).pvalue
                line += f"; paired {gains.mean():+.1f} ± {gains.std(ddof=1):.1f}, p = {p:.2g}"
            print(line, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=400)
    given = parser.parse_args()
    digits(given.seeds, given.iterations)
    cost(given.turns)
