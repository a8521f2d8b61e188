"""Batches, losses and a spy for the tests of a memory."""

import torch
from pytorch_metric_learning import losses

from pml_ext import MetricVarianceRegularizer, RegularizedLoss, registry


def batch(seed=0, size=12, classes=4, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, 6, generator=generator, dtype=dtype).requires_grad_(), torch.arange(size) % classes


def with_references():
    """Every loss, PML's and registered, that says it takes references and can be built without further settings."""
    for component in registry.components("loss"):
        required = [s for s in component.settings.values() if s.default is s.empty]
        if component.name == "pml/dynamic-soft-margin":  # keeps a histogram of its own
            continue
        if not required and registry.capabilities(component.cls) >= {"labels", "indices_tuple", "references"}:
            yield component.name, lambda name=component.name: registry.build(name, "loss")
    yield "regularized", lambda: RegularizedLoss(losses.ContrastiveLoss(), MetricVarianceRegularizer(), weight=0.5)


class Spy(losses.TripletMarginLoss):
    def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        self.seen = indices_tuple
        self.references = ref_emb
        return super().compute_loss(embeddings, labels, indices_tuple, ref_emb, ref_labels)
