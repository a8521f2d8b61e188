"""The peer of :class:`~pml_ext_pddm.PDDMLoss` in ``pml-ext bench``."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .functional import embedding_hinge, scaled, score_hinge


class StraightforwardPDDM(nn.Module):
    """Eq. 2 to 4 with a layer for every line of Eq. 2, run on all pairs with gradients, then mined: one quadruplet.

    Args:
        embedding_size: D.
        dropout: after ``difference``, ``position`` and ``combine``, for each pair.
    """

    def __init__(self, embedding_size: int, dropout: float = 0.5) -> None:
        super().__init__()
        d = embedding_size
        self.difference, self.position = (nn.Sequential(nn.Linear(d, d), nn.Dropout(dropout), nn.ReLU()) for _ in "uv")
        self.combine = nn.Sequential(nn.Linear(2 * d, d), nn.Dropout(dropout), nn.ReLU())
        self.score = nn.Linear(d, 1)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The loss of ``[B, D]`` embeddings and ``[B]`` labels."""
        x = nn.functional.normalize(embeddings)
        u, v = (x[:, None] - x).abs(), (x[:, None] + x) / 2
        u, v = nn.functional.normalize(self.difference(u), dim=2), nn.functional.normalize(self.position(v), dim=2)
        s = self.score(self.combine(torch.cat([u, v], 2)))[..., 0]

        itself = torch.eye(len(x), dtype=torch.bool, device=x.device)
        same = labels[:, None] == labels
        others = s[~itself]
        s = scaled(s, others.min(), others.max())
        place = s.masked_fill(~same | itself, torch.inf).argmin()
        i, j = place // len(x), place % len(x)
        k, l = (s[end].masked_fill(same[end], -torch.inf).argmax() for end in (i, j))  # noqa: E741
        a, p, n = torch.stack([i, j]), torch.stack([j, i]), torch.stack([k, l])
        return (score_hinge(s[a, p], s[a, n]) + 0.5 * embedding_hinge(x[a], x[p], x[n])).sum()
