"""Metrics at the size of Stanford Online Products, beside a plain faiss search: run by hand, some minutes.

python -m benchmarks.evaluation_scale            # time, memory and ratio of the calculator
python -m benchmarks.evaluation_scale --spread 1 # embeddings that have classes; 0 (the default): random ones
"""

import argparse
import resource
import subprocess
import sys
import time

POINTS = 60_502
SIZE = 128
CLASSES = 11_316
RECALL_AT = (1, 10, 100, 1000)
PARTS = ("plain_search", "ranking", "ranking_with_groups", "clusters")


def embeddings(spread):
    """Return embeddings and labels of the set's size."""
    import torch

    generator = torch.Generator().manual_seed(0)
    labels = torch.cat([torch.arange(CLASSES), torch.randint(CLASSES, (POINTS - CLASSES,), generator=generator)])
    points = torch.randn(POINTS, SIZE, generator=generator)
    points += spread * torch.randn(CLASSES, SIZE, generator=generator)[labels]
    return torch.nn.functional.normalize(points), labels


def plain_search(points, labels):
    """Search with faiss alone."""
    import faiss

    index = faiss.IndexFlatL2(SIZE)
    index.add(points.numpy())
    index.search(points.numpy(), max(RECALL_AT) + 1)


def ranking(points, labels):
    """Compute the metrics of neighbors."""
    from pml_ext import RetrievalAccuracyCalculator

    names = (*(f"recall_at_{k}" for k in RECALL_AT), "mean_average_precision_at_r")
    print(RetrievalAccuracyCalculator(include=names, recall_at=RECALL_AT).get_accuracy(points, labels))


def ranking_with_groups(points, labels):
    """Compute the metrics of neighbors outside of each query's group: 12,100 groups of about five of any class."""
    import torch

    from pml_ext import RetrievalAccuracyCalculator

    names = (*(f"recall_at_{k}" for k in RECALL_AT), "mean_average_precision_at_r")
    groups = torch.randint(len(points) // 5, (len(points),), generator=torch.Generator().manual_seed(1))
    calculator = RetrievalAccuracyCalculator(include=names, recall_at=RECALL_AT)
    print(calculator.get_accuracy(points, labels, query_groups=groups))


def clusters(points, labels):
    """Compute the metrics of clusters."""
    from pml_ext import RetrievalAccuracyCalculator

    print(RetrievalAccuracyCalculator(include=("NMI", "f1")).get_accuracy(points, labels))


def main():
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spread", type=float, default=0.0)
    parser.add_argument("--part", choices=PARTS)
    given = parser.parse_args()
    if given.part is None:  # each in a process of its own, which has a peak of memory of its own
        for part in PARTS:
            subprocess.run(
                [sys.executable, "-m", "benchmarks.evaluation_scale", "--spread", str(given.spread), "--part", part],
                check=True,
            )
        return
    import torch

    torch.set_num_threads(2)
    data = embeddings(given.spread)
    started = time.perf_counter()
    used = time.process_time()
    globals()[given.part](*data)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    used = time.process_time() - used
    print(f"{given.part}: {seconds:.1f} s, {used:.0f} s of the processors, {peak:.2f} GB resident at most", flush=True)


if __name__ == "__main__":
    main()
