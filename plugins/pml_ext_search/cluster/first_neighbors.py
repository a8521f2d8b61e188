"""Clusters by first neighbors, FINCH (Sarfraz, Sharma and Stiefelhagen, CVPR 2019), which need no number."""

import numpy as np
import torch
from torch import Tensor, nn

from pml_ext.evaluation import nearest_of
from pml_ext_train.retrieval import Numbers


def first_neighbor_partitions(points: Tensor) -> list[Numbers]:
    """Partitions of points ``[N, D]`` of length 1, the finest first: the cluster of each point.

    The first connects each point with its nearest neighbor; each later one connects earlier clusters by their mean
    directions. A partition into one cluster is left out, unless it is the first.

    *Cost:* the exact nearest neighbor of each point; each later partition has at most half of the clusters.
    """
    partitions: list[Numbers] = []
    labels = np.arange(len(points))
    centers = points
    while len(centers) > 1:
        count, joined = _joined(_first_neighbors(centers))
        if count == 1 and partitions:
            break
        labels = joined[labels]
        partitions.append(labels)
        sums = torch.zeros(count, points.shape[1]).index_add_(0, torch.from_numpy(labels), points)
        centers = nn.functional.normalize(sums)
    return partitions or [labels]


def _first_neighbors(points: Tensor) -> Numbers:
    _, nearest = nearest_of(points, 2, points)
    first, second = nearest.cpu().numpy().T
    is_itself = first == np.arange(len(points))
    neighbors: Numbers = np.where(is_itself, second, first)
    return neighbors


def _joined(neighbors: Numbers) -> tuple[int, Numbers]:
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    count = len(neighbors)
    edges = np.ones(count, dtype=bool)
    places = (np.arange(count, dtype=np.int32), neighbors.astype(np.int32))  # with 64 bits, scipy 1.11 joins nothing
    graph = coo_array((edges, places), shape=(count, count))
    groups, joined = connected_components(graph, directed=False)
    return int(groups), joined.astype(np.int64)
