"""Neighbors under a learned metric, by way of a shortlist."""

import torch
from pytorch_metric_learning.distances import LpDistance

from pml_ext.evaluation import neighbors_under, reranked_under


def test_a_shortlist_nears_the_exact_answer_as_it_grows():
    generator = torch.Generator().manual_seed(0)
    points = torch.nn.functional.normalize(torch.randn(300, 8, generator=generator))
    metric = LpDistance(p=1, normalize_embeddings=False)
    exact = neighbors_under(metric)(points, 10, points, ref_includes_query=True)[1]
    shares = []
    for shortlist in (11, 30, 100, 300):
        found = reranked_under(metric, shortlist)(points, 10, points, ref_includes_query=True)[1]
        shares.append((found[:, :, None] == exact[:, None]).any(2).double().mean().item())
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert shares[0] < 0.95
