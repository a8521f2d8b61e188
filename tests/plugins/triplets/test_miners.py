"""Miners of local positives, and of swapped anchors."""

import numpy as np
import pytest
import torch
from pytorch_metric_learning import miners

from pml_ext import AnchorSwapMiner, LocalPositiveMiner
from pml_ext.pairwise import euclidean_distances, normalize

from .points import LABELS, batch


@pytest.mark.parametrize("percentile", [0, 30, 60, 100])
def test_local_positives_equal_those_of_numpy(percentile):
    x, labels = batch(LABELS)
    points = normalize(x.detach())
    d = (points[:, None] - points).norm(dim=2)
    a1, p, a2, n = LocalPositiveMiner(percentile)(x, labels)
    wanted = []
    for a in range(11):
        mine = [j for j in range(11) if j != a and labels[j] == labels[a]]
        if mine:
            limit = np.percentile([d[a, j].item() for j in mine], percentile)
            wanted += [(a, j) for j in mine if d[a, j].item() <= limit + 1e-12]
    assert list(zip(a1.tolist(), p.tolist(), strict=True)) == wanted
    assert len(a2) == int((labels[:, None] != labels).sum())
    assert not a1.requires_grad
    assert n.dtype == torch.long


def test_anchor_swap_exchanges_anchor_and_positive():
    x = torch.tensor([[1.0, 0], [0, 1], [0.1, 1], [1, 0.1], [1, 0], [0, 1]])  # a p n, a p n
    labels = torch.tensor([0, 0, 1, 2, 2, 3])
    assert [index.tolist() for index in AnchorSwapMiner()(x, labels)] == [[1, 3], [0, 4], [2, 5]]
    swapped = AnchorSwapMiner(miners.TripletMarginMiner(margin=5))(x, labels)
    plain = miners.TripletMarginMiner(margin=5)(x, labels)
    assert len(swapped[0]) == len(plain[0])
    recording = AnchorSwapMiner(collect_stats=True)
    recording(x, labels)
    assert recording.num_triplets == 2
    with pytest.raises(TypeError, match="mines by labels; got None"):
        recording(x, None)
    distances = euclidean_distances(normalize(x))
    assert (distances[swapped[0], swapped[2]] <= distances[swapped[1], swapped[2]] + 1e-6).all()
