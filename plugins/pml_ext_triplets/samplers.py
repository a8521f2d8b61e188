"""Triplets drawn at the input, harder from one refresh to the next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Sampler

from pml_ext.plugin import RunView, check_choice, check_count, check_number, normalize

STRATEGIES = ("hard", "semihard", "misclassified")
_TILE = 512  # anchors compared with all images at a time


class HardNegativePoolSampler(Sampler[int]):
    """Anchor, positive, negative, and so on: triplets drawn at the input, negatives in part from a pool of hard ones.

    An anchor and a positive are drawn at random. The negative comes from the pool with probability ``hard_fraction``,
    if the pool has one for the anchor, else it is any image of another class. In a run the pool is made anew every
    ``refresh`` epochs from the embeddings of all training images; before the first time, and outside of a run, all
    negatives are random. By strategy, an anchor's pool has up to ``pool_size`` images of other classes:

    - ``"hard"``: those nearest to it;
    - ``"semihard"``: those nearer than a positive drawn at random, :math:`d_{an} < d_{ap}`, drawn at random;
    - ``"misclassified"``: those that k-means, with as many clusters as classes, puts into the anchor's cluster.

    Use it with PML's ``EmbeddingsAlreadyPackagedAsTriplets`` or :class:`pml_ext.AnchorSwapMiner` as the miner.

    Args:
        labels: the label of every image, integers, ``[N]``.
        batch_size: images in a batch, a multiple of 3.
        length_before_new_iter: images in one pass, cut to whole batches.
        strategy: ``"hard"``, ``"semihard"`` or ``"misclassified"``.
        refresh: epochs from one refresh to the next, at least 1.
        hard_fraction: the share of negatives from the pool, from 0 to 1.
        pool_size: hard negatives per anchor.
        seed: of the draw; the sampler has a generator of its own.

    Raises:
        ValueError: a setting outside its range, one class alone, or no class with two images.

    *Source:* Shah, Clustering and Querying Images from Unknown Classes Using Metric Learning, Sec. 5.1.
    """

    def __init__(
        self,
        labels: Sequence[int] | Tensor,
        batch_size: int,
        length_before_new_iter: int,
        strategy: str = "hard",
        refresh: int = 2,
        hard_fraction: float = 0.5,
        pool_size: int = 10,
        seed: int = 0,
    ) -> None:
        check_choice(self, "strategy", strategy, STRATEGIES)
        check_number(self, "hard_fraction", hard_fraction, least=0, most=1)
        check_count(self, "refresh", refresh)
        check_count(self, "pool_size", pool_size)
        if batch_size < 3 or batch_size % 3:
            raise ValueError(f"batch_size must be a multiple of 3, for whole triplets; got {batch_size}")
        if length_before_new_iter < batch_size:
            raise ValueError(f"length_before_new_iter must be at least the batch size, {batch_size}; "
                             f"got {length_before_new_iter}")  # fmt: skip
        self._labels = np.asarray(labels)
        classes, self._class_of = np.unique(self._labels, return_inverse=True)
        self._members = [np.flatnonzero(self._class_of == number) for number in range(len(classes))]
        self._anchors = np.flatnonzero(np.bincount(self._class_of)[self._class_of] >= 2)
        if len(classes) < 2 or len(self._anchors) == 0:
            raise ValueError("triplets need two classes or more, and one of them with two images or more")
        self.batch_size, self.strategy, self.refresh = batch_size, strategy, refresh
        self.hard_fraction, self.pool_size = hard_fraction, pool_size
        self._length = length_before_new_iter // batch_size * batch_size
        self._generator = np.random.default_rng(seed)
        self._pool: NDArray[np.int64] | None = None  # [N, pool_size], -1 where there is none

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        for anchor in self._generator.choice(self._anchors, self._length // 3):
            positive = self._other_of_class(int(anchor))
            yield int(anchor)
            yield positive
            yield self._negative(int(anchor))

    def _other_of_class(self, anchor: int) -> int:
        members = self._members[self._class_of[anchor]]
        place = int(self._generator.integers(len(members) - 1))
        return int(members[place] if members[place] != anchor else members[-1])

    def _negative(self, anchor: int) -> int:
        if self._pool is not None and self._generator.random() < self.hard_fraction:
            known = self._pool[anchor][self._pool[anchor] >= 0]
            if len(known):
                return int(self._generator.choice(known))
        while True:
            drawn = int(self._generator.integers(len(self._labels)))
            if self._class_of[drawn] != self._class_of[anchor]:
                return drawn

    # Taking part in a run

    def start_epoch(self, run: RunView) -> None:
        """Makes the pool anew when its time has come.

        Args:
            run: the run that the sampler draws for.
        """
        if run.epoch > 1 and (run.epoch - 1) % self.refresh == 0:
            self.refresh_pool(run.embeddings("train"))

    def refresh_pool(self, embeddings: Tensor) -> None:
        """Makes the pool from the embeddings of all images.

        Args:
            embeddings: ``[N, D]``, in the order of the labels.

        Raises:
            ValueError: not one for each label.
        """
        if len(embeddings) != len(self._labels):
            raise ValueError(f"{len(embeddings)} embeddings for {len(self._labels)} labels")
        x = normalize(embeddings.detach())
        classes = torch.as_tensor(self._class_of, device=x.device)
        groups = self._clusters(x, len(self._members)) if self.strategy == "misclassified" else None
        drawn = []
        for start in range(0, len(x), _TILE):
            rows = torch.arange(start, min(start + _TILE, len(x)), device=x.device)
            similarity = x[rows] @ x.T
            negative = classes[rows, None] != classes
            drawn.append(self._hard(rows, similarity, negative, groups).cpu().numpy())
        self._pool = np.concatenate(drawn)

    def _hard(self, rows: Tensor, similarity: Tensor, negative: Tensor, groups: Tensor | None) -> Tensor:
        """Hard negatives of some anchors, ``[rows, pool_size]``, -1 where there is none."""
        if groups is not None:
            score = torch.where(negative & (groups[rows, None] == groups), similarity, -torch.inf)
        elif self.strategy == "semihard":
            drawn = [self._other_of_class(row) if len(self._members[self._class_of[row]]) > 1 else row
                     for row in rows.tolist()]  # fmt: skip
            to_positive = similarity.gather(1, torch.as_tensor(drawn, device=rows.device)[:, None])
            lots = torch.as_tensor(self._generator.random(similarity.shape), device=rows.device)
            score = torch.where(negative & (similarity > to_positive), lots.to(similarity.dtype), -torch.inf)
        else:
            score = torch.where(negative, similarity, -torch.inf)
        best = score.topk(min(self.pool_size, score.shape[1]), dim=1)
        return torch.where(best.values > -torch.inf, best.indices, -1)

    @staticmethod
    def _clusters(x: Tensor, number: int) -> Tensor:
        from pml_ext.plugin import kmeans

        return kmeans(x, number).to(x.device)

    def state_dict(self) -> dict[str, Any]:
        """The generator and the pool."""
        return {"generator": self._generator.bit_generator.state, "pool": self._pool}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where :meth:`state_dict` was taken."""
        self._generator.bit_generator.state = state["generator"]
        self._pool = state["pool"]
