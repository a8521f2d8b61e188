"""Sampler of triplets with hard negatives from a pool that is renewed during training."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Sampler

from pml_ext.plugin import RunView, check_choice, check_count, check_number, members_by_class, normalize

_TILE = 512  # number of anchors per tile, compared with all images
Pairs = NDArray[np.int64]  # [P, 2], anchors and negatives


class HardNegativePoolSampler(Sampler[int]):
    """Sampler of triplets (anchor, positive, negative, anchor, ...) with some hard negatives.

    A share ``hard_fraction`` of the triplets has its negative from a pool; all other triplets are random. A run renews
    the pool every ``refresh`` epochs. Before the first refresh all triplets are random. With ``pool="batches"`` (Sec.
    5.1) the pool is a list of pairs (a, n), chosen by ``strategy``:

    - ``"hard"``: from each training batch since the last refresh, the ``pool_size`` nearest pairs of an anchor and an
      image of another class;
    - ``"semihard"``: from each such batch, ``pool_size`` random pairs with :math:`d_{an} < d_{ap}`;
    - ``"misclassified"``: each k-means cluster gets its majority class; an image in a cluster of another class becomes
      a hard negative of ``pool_size`` random anchors of that class.

    With ``per="anchor"``, ``pool_size`` counts pairs per anchor instead of per batch; ``"misclassified"`` ignores it.

    With ``pool="nearest"``, each anchor has up to ``pool_size`` negatives among all training images: the nearest
    (``"hard"``); random ones nearer than a random positive (``"semihard"``); the nearest in the anchor's own k-means
    cluster (``"misclassified"``).

    The miner is PML's ``EmbeddingsAlreadyPackagedAsTriplets`` or :class:`pml_ext.AnchorSwapMiner`. In your own loop,
    call :meth:`collect` after each step and :meth:`refresh_pool` every few epochs.

    *Cost:* one product of the batch with itself per step; with ``pool="nearest"`` or ``"misclassified"``, each refresh
    embeds all training images.

    Args:
        labels: the label of every image, integers, ``[N]``.
        batch_size: images in a batch, a multiple of 3.
        length_before_new_iter: images in one pass, rounded down to whole batches.
        strategy: ``"hard"``, ``"semihard"`` or ``"misclassified"``.
        refresh: epochs between refreshes, at least 1.
        hard_fraction: share of triplets whose negative is from the pool, from 0 to 1.
        pool_size: pairs per batch, or hard negatives per anchor.
        seed: of the sampler's own generator.
        pool: ``"batches"``, as in the paper, or ``"nearest"``.
        per: ``"batch"``, as in the paper, or ``"anchor"``.

    Raises:
        ValueError: a setting outside its range, fewer than two classes, or no class with two images.

    *Source:* Shah, Clustering and Querying Images, Sec. 5.1; see :class:`BatchAllTripletLoss`.
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
        pool: str = "batches",
        per: str = "batch",
    ) -> None:
        check_choice(self, "strategy", strategy, ("hard", "semihard", "misclassified"))
        check_choice(self, "pool", pool, ("batches", "nearest"))
        check_choice(self, "per", per, ("batch", "anchor"))
        if pool == "nearest" and per == "anchor":
            raise ValueError('found pool="nearest", whose pairs are of each anchor anyway; leave out per="anchor"')
        if strategy == "misclassified" and per == "anchor":
            raise ValueError(
                'found strategy="misclassified", whose pairs are of each misclassified image; leave out per="anchor"'
            )
        check_number(self, "hard_fraction", hard_fraction, least=0, most=1)
        check_count(self, "refresh", refresh)
        check_count(self, "pool_size", pool_size)
        if batch_size < 3 or batch_size % 3:
            raise ValueError(f"batch_size must be a multiple of 3, for whole triplets; got {batch_size}")
        if length_before_new_iter < batch_size:
            raise ValueError(
                f"length_before_new_iter must be at least the batch size, {batch_size}; got {length_before_new_iter}"
            )
        self._labels = np.asarray(labels)
        classes, self._class_of = np.unique(self._labels, return_inverse=True)
        self._members = members_by_class(self._class_of)
        self._anchors = np.flatnonzero(np.bincount(self._class_of)[self._class_of] >= 2)
        if len(classes) < 2 or len(self._anchors) == 0:
            raise ValueError("triplets need two classes or more, and one of them with two images or more")
        self.batch_size = batch_size
        self.strategy = strategy
        self.refresh = refresh
        self.hard_fraction = hard_fraction
        self.pool_size = pool_size
        self.pool = pool
        self.per = per
        self._length = length_before_new_iter // batch_size * batch_size
        self._generator = np.random.default_rng(seed)
        self._pool: Pairs | None = None  # for pool="nearest", sorted by anchor
        self._collected: list[Pairs] = []  # since the last refresh

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        for drawn in self._generator.choice(self._anchors, self._length // 3).tolist():
            pair = self._pair()
            if pair is not None:
                anchor, negative = pair
                yield anchor
                yield self._other_of_class(anchor)
                yield negative
            else:
                yield drawn
                yield self._other_of_class(drawn)
                yield self._negative(drawn)

    def _pair(self) -> tuple[int, int] | None:
        if self.pool != "batches" or self._pool is None or self._generator.random() >= self.hard_fraction:
            return None
        if not len(self._pool):
            return None
        anchor, negative = self._pool[self._generator.integers(len(self._pool))].tolist()
        return anchor, negative

    def _other_of_class(self, anchor: int) -> int:
        members = self._members[self._class_of[anchor]]
        place = int(self._generator.integers(len(members) - 1))
        if members[place] == anchor:
            return int(members[-1])
        return int(members[place])

    def _negative(self, anchor: int) -> int:
        if self.pool == "nearest" and self._pool is not None and self._generator.random() < self.hard_fraction:
            first, end = np.searchsorted(self._pool[:, 0], [anchor, anchor + 1])
            if end > first:
                return int(self._generator.choice(self._pool[first:end, 1]))
        while True:
            drawn = int(self._generator.integers(len(self._labels)))
            if self._class_of[drawn] != self._class_of[anchor]:
                return drawn

    # Taking part in a run

    def start_epoch(self, run: RunView) -> None:
        """Renew the pool every ``refresh`` epochs."""
        if run.epoch > 1 and (run.epoch - 1) % self.refresh == 0 and self.hard_fraction > 0:
            embeddings = None if self._collects else run.embeddings("train")
            self.refresh_pool(embeddings)

    def after_step(self, run: RunView, indices: Tensor, embeddings: Tensor) -> None:
        """Collect the hard pairs of a training batch."""
        self.collect(indices, embeddings)

    @property
    def _collects(self) -> bool:
        return self.pool == "batches" and self.strategy != "misclassified" and self.hard_fraction > 0

    def collect(self, indices: Tensor, embeddings: Tensor) -> None:
        """Collect hard pairs of a batch: indices ``[B]`` of whole triplets, embeddings ``[B, D]``."""
        if len(indices) != len(embeddings) or len(indices) % 3:
            raise ValueError(f"{len(embeddings)} embeddings for {len(indices)} indices; wanted one each, of triplets")
        if not self._collects:
            return
        x = normalize(embeddings.detach())
        images = indices.cpu().numpy()
        classes = torch.as_tensor(self._class_of[images], device=x.device)
        similarity = x[::3] @ x.T  # of each triplet's anchor to the whole batch
        score = torch.where(classes[::3, None] != classes, similarity, -torch.inf)
        if self.strategy == "semihard":
            triplets = torch.arange(len(similarity))
            to_positive = similarity[triplets, 3 * triplets + 1]
            score = self._drawn_below(score, to_positive)
        if self.per == "batch":
            _, flat_columns = self._best(score.reshape(1, -1)).T
            rows, columns = np.divmod(flat_columns, score.shape[1])
        else:
            rows, columns = self._best(score).T
        self._collected.append(np.stack([images[3 * rows], images[columns]], axis=1))

    def refresh_pool(self, embeddings: Tensor | None = None) -> None:
        """Renew the pool: from the collected pairs, or else from all embeddings ``[N, D]``.

        ValueError for embeddings where pairs were collected, or a wrong number of them.
        """
        if self.hard_fraction == 0:  # the pool is never used
            return
        if self._collects:
            if embeddings is not None:
                raise ValueError('with pool="batches" the pool is what collect() was given; leave embeddings out')
            self._pool = np.concatenate([np.empty((0, 2), np.int64), *self._collected])
            self._collected = []
        else:
            self._pool = self._searched(embeddings)

    def _searched(self, embeddings: Tensor | None) -> Pairs:
        given = 0 if embeddings is None else len(embeddings)
        if embeddings is None or given != len(self._labels):
            raise ValueError(f"{given} embeddings for {len(self._labels)} labels")
        x = normalize(embeddings.detach())
        groups = None
        if self.strategy == "misclassified":
            from pml_ext.plugin import kmeans

            groups = kmeans(x, len(self._members)).to(x.device)
            if self.pool == "batches":
                return self._misclassified(groups.cpu().numpy())
        tiles = torch.split(torch.arange(len(x), device=x.device), _TILE)
        return np.concatenate([self._nearest(x, rows, groups) for rows in tiles])

    def _misclassified(self, groups: NDArray[np.int64]) -> Pairs:
        """Pairs of an anchor and an image in a cluster of the anchor's class."""
        counts = np.zeros((groups.max() + 1, len(self._members)), dtype=np.int64)
        np.add.at(counts, (groups, self._class_of), 1)
        majority_class = counts.argmax(axis=1)
        owner = majority_class[groups]
        pairs = [np.empty((0, 2), np.int64)]
        for image in np.flatnonzero(owner != self._class_of):
            members = self._members[owner[image]]
            if len(members) > 1:
                anchors = self._generator.permutation(members)[: self.pool_size]
                pairs.append(np.stack([anchors, np.full_like(anchors, image)], axis=1))
        return np.concatenate(pairs)

    def _nearest(self, x: Tensor, rows: Tensor, groups: Tensor | None) -> Pairs:
        """Pairs of the anchors ``rows`` with up to ``pool_size`` hard negatives each."""
        classes = torch.as_tensor(self._class_of, device=x.device)
        inside = classes[rows, None] != classes
        if groups is not None:
            inside &= groups[rows, None] == groups
        similarity = x[rows] @ x.T
        score = torch.where(inside, similarity, -torch.inf)
        if self.strategy == "semihard":
            drawn = []
            for row in rows.tolist():
                is_alone = len(self._members[self._class_of[row]]) == 1
                drawn.append(row if is_alone else self._other_of_class(row))
            score = self._drawn_below(score, similarity[torch.arange(len(rows)), drawn])
        pairs = self._best(score)
        pairs[:, 0] += int(rows[0])
        return pairs

    def _drawn_below(self, score: Tensor, to_positive: Tensor) -> Tensor:
        lots = torch.as_tensor(self._generator.random(score.shape), device=score.device)
        return torch.where(score > to_positive[:, None], lots.to(score.dtype), -torch.inf)

    def _best(self, score: Tensor) -> Pairs:
        best = score.topk(min(self.pool_size, score.shape[1]), dim=1)
        rows, places = torch.where(best.values > -torch.inf)
        return torch.stack([rows, best.indices[rows, places]], 1).cpu().numpy()

    def state_dict(self) -> dict[str, Any]:
        """Generator, pool, and the pairs collected for the next pool."""
        generator = self._generator.bit_generator.state
        return {"generator": generator, "pool": self._pool, "collected": list(self._collected)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a :meth:`state_dict`."""
        self._generator.bit_generator.state = state["generator"]
        self._pool = state["pool"]
        self._collected = list(state["collected"])
