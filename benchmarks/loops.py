"""CPU time of components and of the slow reference loops in their tests, values only.

``python -m benchmarks.loops``: float64, one thread; the median of five calls, one call of the loop.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

from pml_ext import PDDMDistance, PDDMLoss
from pml_ext_density.clustering import ClusteringLoss
from pml_ext_pddm.distances import MahalanobisDistance
from tests.plugins.density.test_density import slow_clustering as clustering
from tests.plugins.pddm import loops


def measured(function: Callable[[], object]) -> tuple[float, torch.Tensor]:
    start = time.process_time()
    value = function()
    return 1e3 * (time.process_time() - start), torch.as_tensor(value, dtype=torch.float64)


def compare(name: str, component: Callable[[], object], loop: Callable[[], object]) -> None:
    """Print both times, and the largest difference of the values."""
    component()  # the first call makes what later ones keep
    calls = [measured(component) for _ in range(5)]
    slow, wanted = measured(loop)
    fast = statistics.median(each for each, _ in calls)
    apart = (calls[0][1] - wanted).abs().max()
    print(f"{name:36} {fast:8.1f} ms {slow:10.1f} ms {slow / fast:7.0f} {apart:9.0e}", flush=True)


torch.set_num_threads(1)
torch.manual_seed(0)
print(f"{'':36} {'component':>11} {'loop':>13} {'ratio':>7} {'apart':>9}")
with torch.no_grad():
    for batch, per_class in ((32, 4), (64, 4), (100, 10), (128, 4)):
        x = torch.randn(batch, 64, dtype=torch.float64)
        labels = torch.arange(batch) // per_class
        loss = ClusteringLoss()
        name = f"ClusteringLoss, {batch}, {per_class} per class"
        compare(name, partial(loss, x, labels), partial(clustering, x, labels, loss))
    x = torch.randn(64, 32, dtype=torch.float64)
    labels = torch.arange(64) // 4
    for kind in ("logistic", "fisher"):
        pddm = PDDMLoss(PDDMDistance(32, dropout=0.0).double(), pointwise=kind, embedding_weight=0.0)
        loop = partial(loops.pointwise, pddm.distance, x, labels.tolist(), kind)
        compare(f"PDDMLoss, {kind}, 64, 4 per class", partial(pddm, x, labels), loop)
    metric = MahalanobisDistance(32).double()
    metric.linear.weight.copy_(torch.randn(32, 32))
    compare("MahalanobisDistance, 64", partial(metric, x), partial(loops.mahalanobis, metric.linear.weight, x, x))
