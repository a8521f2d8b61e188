"""Settings and inputs that the plugins' classes refuse, and what they say."""

import math

import pytest
import torch
from pytorch_metric_learning.distances import CosineSimilarity, LpDistance
from pytorch_metric_learning.miners import MultiSimilarityMiner

from pml_ext import (
    AnchorSwapMiner,
    AngularLoss,
    BatchAllTripletLoss,
    CBMLLoss,
    DensityRegularizer,
    HardNegativePoolSampler,
    HardQuadrupletMiner,
    NPairLoss,
    PDDMDistance,
    PDDMLoss,
    SoftmaxLoss,
    WholeClassSampler,
)
from pml_ext_cbml.statistics import PairStatistics

X = torch.randn(12, 5, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) // 3
KNOWN = PairStatistics(mean_pos=0.7, std_pos=0.15, mean_neg=0.2, std_neg=0.12, num_pos=7, num_neg=112)


def pddm(**settings):
    return PDDMLoss(PDDMDistance(5), **settings)


def pool(labels=tuple(range(4)) * 5, batch_size=12, length=120, **settings):
    return HardNegativePoolSampler(labels, batch_size, length, **settings)


ANGLE = "alpha of AngularLoss must be a finite number above 0 and below 90, not"
CALLS = ("forward", "compute_mat", "pairwise_distance")
QUERY = r"query_emb must have embedding_size=6 columns; got shape \(12, 5\)"
REFERENCE = r"ref_emb must have embedding_size=5 columns; got shape \(12, 4\)"
VALUES = [
    *((lambda alpha=alpha: AngularLoss(alpha=alpha), ANGLE) for alpha in (0.0, 90.0, math.nan)),
    (lambda: NPairLoss(distance=LpDistance()), "takes no distance; normalize_embeddings=False"),
    (lambda: AngularLoss()(X, Y[:5]), r"labels must be a tensor of integers of shape \(12,\)"),
    (lambda: CBMLLoss(delta="rate"), "delta of CBMLLoss must be a finite number at least 0 or 'ratio', not 'rate'"),
    (lambda: CBMLLoss(distance=LpDistance()), "CBMLLoss needs a similarity.*got distance=LpDistance"),
    (lambda: CBMLLoss(statistics=(0.7, 0.1, 0.2, 0.1), beta_neg=0.1), "leave those out"),
    (lambda: CBMLLoss.from_statistics(PairStatistics(0.2, 0.9, 0.1, 0.9, 90, 1)), "gives beta_pos"),
    (lambda: CBMLLoss.from_statistics(KNOWN, delta="ratio"), "has delta in the exponents"),
    (lambda: PairStatistics(0.2, 0.1, 0.7, 0.1), "mean_pos of PairStatistics must be above mean_neg"),
    (lambda: PairStatistics.of(X, torch.arange(12)), "needs at least one positive and one negative pair"),
    (lambda: SoftmaxLoss(2, 5, class_labels=[7, 9])(X, Y + 7), r"have no class: SoftmaxLoss .* with labels 7 to 9"),
    (lambda: SoftmaxLoss(4, 5)(X, Y, (Y[:1],) * 3), "no indices_tuple"),
    (lambda: DensityRegularizer(3, base_density=[0.1]), "base_density must have one value for each of the 3 classes"),
    *((lambda call=call: getattr(PDDMDistance(6), call)(X, X[:, :4]), QUERY) for call in CALLS),
    *((lambda call=call: getattr(PDDMDistance(5), call)(X, X[:, :4]), REFERENCE) for call in CALLS),
    (lambda: pddm()(X, Y, ref_emb=X.clone(), ref_labels=Y), "takes no references"),
    (lambda: pddm(per_class=True)(X, None, (Y[:0],) * 4), "needs labels"),
    (lambda: HardQuadrupletMiner(num_quadruplets=0), "num_quadruplets of HardQuadrupletMiner must be a whole number"),
    (lambda: BatchAllTripletLoss(distance=CosineSimilarity()), "needs a distance, where smaller means nearer"),
    (lambda: AnchorSwapMiner(MultiSimilarityMiner())(X, Y), "MultiSimilarityMiner gives pairs"),
    (lambda: pool(batch_size=10), "multiple of 3"),
    (lambda: pool([0, 0, 0]), "two classes"),
    (lambda: pool([0, 1, 2]), "two images"),
    (lambda: WholeClassSampler([0, 1] + [3] * 7, 7), "class 3 has 7 images and would fill a batch of 7 alone"),
    (lambda: WholeClassSampler([0, 0, 1], 40), "between 1 and the 3 images"),
]
TYPES = [
    (lambda: CBMLLoss(distance="cosine"), "distance of CBMLLoss must be a distance of pytorch-metric-learning"),
    (lambda: PDDMLoss(LpDistance()), r"must be a PDDMDistance, for example PDDMDistance\("),
]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [(call, error, text) for error, rows in ((ValueError, VALUES), (TypeError, TYPES)) for call, text in rows],
)
def test_what_is_refused_is_named(call, error, text):
    with pytest.raises(error, match=text):
        call()
