"""Losses in tiles, and the calls that they are compared in."""

import torch
from pytorch_metric_learning import miners

from pml_ext import (
    AngularLoss,
    AngularTripletLoss,
    BatchAllTripletLoss,
    CBMLLoss,
    NPairAngularLoss,
    NPairLoss,
    TiledContrastiveLoss,
    TiledMultiSimilarityLoss,
    TiledNTXentLoss,
    TiledSupConLoss,
    TiledTripletMarginLoss,
)
from pml_ext_triplets.functional import KINDS

SIZE = 5
LOSSES = {
    "cbml": (CBMLLoss, {}),
    "cbml, other settings": (CBMLLoss, {"averaging": "sqrt", "delta": "ratio", "skip_unmined": True}),
    "angular": (AngularLoss, {"alpha": 44}),
    "angular, gathered rows": (AngularLoss, {"alpha": 70}),
    "angular, raw": (AngularLoss, {"alpha": 44, "normalize_embeddings": False}),
    "n-pair": (NPairLoss, {}),
    "n-pair-angular": (NPairAngularLoss, {"alpha": 44}),
    "angular-triplet": (AngularTripletLoss, {"alpha": 44}),
    **{f"batch-all, {kind}": (BatchAllTripletLoss, {"kind": kind}) for kind in KINDS},
    "batch-all, local": (BatchAllTripletLoss, {"positives": "local", "triplets": "all"}),
    "contrastive": (TiledContrastiveLoss, {"pos_margin": 0.3}),
    "multi-similarity": (TiledMultiSimilarityLoss, {}),
    "nt-xent": (TiledNTXentLoss, {}),
    "sup-con": (TiledSupConLoss, {}),
    "triplet-margin": (TiledTripletMarginLoss, {"margin": 0.3}),
    "triplet-margin, swap": (TiledTripletMarginLoss, {"margin": 0.3, "swap": True, "smooth_loss": True}),
}


def batch(count=23, seed=0, classes=6):
    """Ragged classes in no order, one of them of a single image, and some images twice."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (count,), generator=generator)
    labels[7] = 99
    x = torch.randn(count, SIZE, generator=generator, dtype=torch.float64)
    x[1] = x[0]
    return x.requires_grad_(), labels


X, LABELS = batch()
REFERENCES = batch(17, seed=1)
CALLS = {
    "labels": {},
    "pairs": {"indices_tuple": miners.MultiSimilarityMiner(0.3)(X, LABELS)},
    "triplets": {"indices_tuple": miners.TripletMarginMiner(0.3)(X, LABELS)},
    "references": {"ref_emb": REFERENCES[0], "ref_labels": REFERENCES[1]},
    "references and pairs": {
        "ref_emb": REFERENCES[0],
        "ref_labels": REFERENCES[1],
        "indices_tuple": miners.MultiSimilarityMiner(0.3)(X, LABELS, *REFERENCES),
    },
}


def agree(one, other, tolerance=1e-11):
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a.double(), b.double(), rtol=tolerance, atol=tolerance)
