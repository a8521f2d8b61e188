"""Clusters by first neighbors, compared with a loop."""

import numpy as np
import torch

from pml_ext_search.cluster.first_neighbors import first_neighbor_partitions


def partitions_by_a_loop(points):
    """FINCH as in the paper: i and j are linked if one is the other's first neighbor, or if both have the same one."""
    rows = points.numpy().astype(np.float64)
    clusters = [[number] for number in range(len(rows))]
    partitions = []
    while len(clusters) > 1:
        centers = []
        for members in clusters:
            mean = rows[members].mean(0)
            centers.append(mean / np.linalg.norm(mean))
        first = []
        for number, center in enumerate(centers):
            similarities = [float(center @ other) for other in centers]
            similarities[number] = -np.inf
            first.append(int(np.argmax(similarities)))
        group = list(range(len(clusters)))
        for one in range(len(clusters)):
            for other in range(len(clusters)):
                if first[one] == other or first[one] == first[other]:
                    before = group[other]
                    group = [group[one] if each == before else each for each in group]
        joined = []
        for label in sorted(set(group)):
            members = []
            for number, each in enumerate(group):
                if each == label:
                    members += clusters[number]
            joined.append(sorted(members))
        if len(joined) == 1 and partitions:
            break
        clusters = joined
        partitions.append({tuple(members) for members in clusters})
    return partitions


def as_sets(labels):
    return {tuple(np.flatnonzero(labels == label).tolist()) for label in np.unique(labels)}


def test_partitions_are_those_of_a_loop():
    points = torch.nn.functional.normalize(torch.randn(120, 12, generator=torch.Generator().manual_seed(0)))
    found = [as_sets(labels) for labels in first_neighbor_partitions(points)]
    assert len(found) > 1
    assert found == partitions_by_a_loop(points)


def test_equal_points_are_in_one_cluster():
    points = torch.eye(4)[[0, 0, 0, 0, 1, 1, 1]]
    assert as_sets(first_neighbor_partitions(points)[0]) == {(0, 1, 2, 3), (4, 5, 6)}


def test_one_point_is_one_cluster():
    assert [labels.tolist() for labels in first_neighbor_partitions(torch.eye(4)[:1])] == [[0]]
    assert [labels.tolist() for labels in first_neighbor_partitions(torch.eye(4)[:2])] == [[0, 0]]
