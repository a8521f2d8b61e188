"""Adjusted mutual information of clusterings that choose their number of clusters.

``python -m benchmarks.clusters [FILE.npz ...]`` (extra ``cpu``) clusters scikit-learn's digits, and embeddings with
classes from ``pml-ext embed``. It prints the agreement with the classes, the number of clusters, the share of images
without one, and the largest. An image without a cluster counts as its own. k-means gets the true number of classes.
"""

import argparse
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import HDBSCAN, AgglomerativeClustering, KMeans
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_mutual_info_score

from pml_ext_search.cluster.first_neighbors import first_neighbor_partitions

Points = NDArray[np.float32]
Labels = NDArray[np.int64]
Clustering = Callable[[Points, int], Labels]
MOST = 1200  # images of a set
PARTS = ((6, 30), (30, 6), (50, 20))  # classes, and at most so many images of each


def parts_of(points: Points, labels: Labels) -> Iterator[tuple[str, Points, Labels]]:
    generator = np.random.default_rng(0)
    rows = generator.permutation(len(points))[:MOST]
    yield "all", points[rows], labels[rows]
    classes = np.unique(labels)
    for wanted, images in PARTS:
        if wanted > len(classes):
            continue
        chosen = []
        for label in generator.permutation(classes)[:wanted]:
            chosen.append(generator.permutation(np.flatnonzero(labels == label))[:images])
        rows = np.concatenate(chosen)
        yield f"{wanted} classes of {images}", points[rows], labels[rows]


def partition(number: int) -> Clustering:
    def cluster(points: Points, _: int) -> Labels:
        found = first_neighbor_partitions(torch.from_numpy(points))
        return found[min(number, len(found) - 1)]

    return cluster


def linkage(kind: str, factor: float) -> Clustering:
    """A linkage, cut at a multiple of the mean distance to the fifth neighbor."""

    def cluster(points: Points, _: int) -> Labels:
        distances = np.sqrt(np.maximum(0, 2 - 2 * points @ points.T))
        threshold = factor * np.sort(distances, axis=1)[:, 5].mean()
        tree: Any = AgglomerativeClustering(n_clusters=None, distance_threshold=threshold, linkage=kind)
        return np.asarray(tree.fit_predict(points))

    return cluster


METHODS: dict[str, Clustering] = {
    "HDBSCAN, 5 images or more": lambda points, _: HDBSCAN(min_cluster_size=5, copy=True).fit_predict(points),
    "first neighbors, partition 1": partition(0),
    "first neighbors, partition 2": partition(1),
    "first neighbors, partition 3": partition(2),
    "average linkage, 1.1": linkage("average", 1.1),
    "average linkage, 1.2": linkage("average", 1.2),
    "Ward's linkage, 1.75": linkage("ward", 1.75),
    "Ward's linkage, 2": linkage("ward", 2),
    "Ward's linkage, 2.5": linkage("ward", 2.5),
    "k-means, true number": lambda points, k: KMeans(k, n_init=1, random_state=0).fit_predict(points),
}


def singles(labels: Labels) -> Labels:
    """Labels in which each image without a cluster is its own cluster."""
    found = labels.copy()
    none = np.flatnonzero(labels < 0)
    found[none] = labels.max() + 1 + np.arange(len(none))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    digits = load_digits()
    pixels = digits.data.astype(np.float32)
    sets = {"digits": (pixels / np.linalg.norm(pixels, axis=1, keepdims=True), digits.target)}
    for file in given.files:
        with np.load(file, allow_pickle=False) as stored:
            sets[file.stem] = (stored["embeddings"], np.unique(stored["classes"], return_inverse=True)[1])
    values: dict[str, list[float]] = {}
    for name, (points, labels) in sets.items():
        for part, some, truth in parts_of(points, labels):
            k = len(np.unique(truth))
            print(f"\n{name}, {part}: {len(some)} images of {k} classes")
            for method, cluster in METHODS.items():
                found = cluster(some, k)
                agreement = adjusted_mutual_info_score(truth, singles(found))
                values.setdefault(method, []).append(agreement)
                largest = np.bincount(singles(found)).max() / len(found)
                none = (found < 0).mean()
                print(
                    f"  {method:30s} {agreement:.3f}  {found.max() + 1:4d} clusters, {none:4.0%} in none, "
                    f"largest {largest:4.0%}",
                    flush=True,
                )
    print("\nmean, least")
    for method, each in values.items():
        print(f"  {method:30s} {np.mean(each):.3f} {min(each):.3f}")


if __name__ == "__main__":
    main()
