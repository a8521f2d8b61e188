"""The loss of alignment and uniformity."""

import torch

from pml_ext.plugin import (
    BaseMetricLossFunction,
    FullPrecisionForward,
    GramCosineSimilarity,
    check_number,
    matrix_of,
    pair_masks,
    require_similarity,
)


class AlignmentUniformityLoss(FullPrecisionForward, BaseMetricLossFunction):
    r"""Positive pairs near, negatives spread evenly on the sphere.

    .. math::
        \operatorname{mean}_{(i, j) \in P} \|x_i - x_j\|^2
        + \lambda \operatorname{mean}_i \log \operatorname{mean}_{k \in N_i} e^{-t \|x_i - x_k\|^2}

    Two sub-losses, ``alignment`` (one value per positive pair) and ``uniformity`` (one per anchor with negatives).

    Args:
        uniformity_weight: lambda, 0 or more.
        temperature: t, above 0; 2 in the paper.
        kwargs: as in PML's losses.

    Source: Wang and Isola, 2020, https://arxiv.org/abs/2005.10242.
    """

    capabilities = frozenset({"labels", "indices_tuple", "references"})

    def __init__(self, uniformity_weight: float = 1.0, temperature: float = 2.0, **kwargs):
        check_number(self, "uniformity_weight", uniformity_weight, least=0)
        check_number(self, "temperature", temperature, above=0)
        super().__init__(**kwargs)
        require_similarity(self, self.distance)
        self.uniformity_weight = uniformity_weight
        self.temperature = temperature

    def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        similarity, has_references = matrix_of(self.distance, embeddings, ref_emb)
        squared = 2 - 2 * similarity
        positives, negatives = pair_masks(similarity, labels, indices_tuple, ref_labels, has_references=has_references)
        anchors, partners = torch.where(positives)
        number = negatives.sum(1)
        exponents = (-self.temperature * squared).masked_fill(~negatives, -torch.inf)
        rows = torch.where(number > 0)[0]
        uniformity = exponents[rows].logsumexp(1) - number[rows].to(squared.dtype).log()
        return {
            "alignment": self._values(squared[anchors, partners], (anchors, partners), "pos_pair"),
            "uniformity": self._values(self.uniformity_weight * uniformity, rows, "element"),
        }

    def _values(self, losses, indices, kind):
        """For PML's reducer; 0 where there are none, whose mean is not a number."""
        if len(losses) == 0:
            return self.zero_loss()
        return {"losses": losses, "indices": indices, "reduction_type": kind}

    def _sub_loss_names(self):
        return ["alignment", "uniformity"]

    def get_default_distance(self):
        return GramCosineSimilarity()
