"""Mirrored, turned and captioned copies: pairs of thumbnails that match once they are aligned."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pml_ext_train.retrieval import Numbers, Vectors

from .groups import FromKept
from .near_pairs import Pairs, joined
from .thumbnails import STORED, NearestVectors, Thumbnails, candidates, unique_pairs

_ALIKE = 0.6  # coarse distance up to which pairs are compared
_BETTER = 0.5  # of the distance without alignment; symmetric images are as near without it
_LEAST_DETAIL = 0.5  # of an image; plainer ones fit too many others
_CAPTIONED = 0.5  # of the radius: less of a captioned image is compared
_BAR = STORED // 8  # height of a caption
_REST = STORED - _BAR - 1  # rows without a caption, whose edge is blurred
_JUMP = 10.0  # gray levels, between a caption and the rest
_PLAIN = 15.0  # gray levels from the median background of a caption
_ACROSS = 0.75  # of the columns show the edge and the background of a caption
_BLOCK = 1 << 12  # pairs that are compared at a time


class Alignment(NamedTuple):
    """How the first image of a pair is turned to match the second, or which caption of both is ignored."""

    changes: tuple[str, ...]  # what the second image is, compared with the first
    view: Callable[[Tensor], Tensor]  # of gray thumbnails ``[N, 64, 64]``
    is_ordered: bool = False  # whether the opposite turn differs
    caption_last: Callable[[Tensor], Tensor] | None = None  # turns a caption to the last rows

    def shown(self, thumbnails: Thumbnails) -> Thumbnails:
        """The first images, turned or cut."""
        return Thumbnails(self.view(thumbnails.gray).contiguous(), thumbnails.colors)

    def distances(self, thumbnails: Thumbnails, first: Numbers, second: Numbers) -> Vectors:
        """Distances of aligned pairs; infinite for pairs that do not match roughly."""
        distances = np.full(len(first), np.inf, dtype=np.float32)
        order = np.argsort(first, kind="stable")
        for start in range(0, len(order), _BLOCK):
            places = order[start : start + _BLOCK]
            ones, one = np.unique(first[places], return_inverse=True)
            others, other = np.unique(second[places], return_inverse=True)
            here = _rows_of(thumbnails, ones)
            there = _rows_of(thumbnails, others)
            may_match = np.ones(len(places), dtype=bool)
            if self.caption_last is not None:
                may_match = _show_caption(self.caption_last(here.gray), self.caption_last(there.gray), (one, other))
                there = self.shown(there)
            here = self.shown(here)
            both = Thumbnails(torch.cat([here.gray, there.gray]), torch.cat([here.colors, there.colors]))
            other += len(ones)
            detailed = both.fractions_of_details() >= _LEAST_DETAIL
            may_match &= detailed[one] & detailed[other] & (both.coarse_distances(one, other) <= _ALIKE)
            distances[places[may_match]] = both.distances(one[may_match], other[may_match])
        return distances


def _symmetry(turns: int, is_mirrored: bool) -> Alignment:
    def view(gray: Tensor) -> Tensor:
        return torch.rot90(gray.flip(-1) if is_mirrored else gray, -turns, (-2, -1))

    changes = ["mirrored"] if is_mirrored else []
    if turns:
        changes.append(f"turned {90 * turns} degrees")
    return Alignment(tuple(changes), view, is_ordered=turns % 2 == 1 and not is_mirrored)


def _caption(is_top: bool) -> Alignment:
    def turned(gray: Tensor) -> Tensor:
        return gray.flip(1) if is_top else gray

    def view(gray: Tensor) -> Tensor:
        rest = turned(gray)[:, None, :_REST].float()
        whole = nn.functional.interpolate(rest, (STORED, STORED), mode="bilinear", align_corners=False)
        return turned(whole[:, 0].round().to(torch.uint8))

    return Alignment(("captioned",), view, caption_last=turned)


ALIGNMENTS = (
    *(_symmetry(turns, is_mirrored=False) for turns in (1, 2, 3)),
    *(_symmetry(turns, is_mirrored=True) for turns in range(4)),
    _caption(is_top=False),
    _caption(is_top=True),
)
"""The symmetries of a rectangle besides itself, and a caption at the bottom or the top."""


def turned_pairs(thumbnails: Thumbnails, groups: Sequence[Numbers], radius: float) -> Pairs:
    """Pairs within a radius by an alignment; ``groups`` as in :func:`pml_ext_copies.thumbnails.candidates`."""
    found = []
    for alignment in ALIGNMENTS:
        shown = alignment.shown(thumbnails)
        searched = thumbnails if alignment.caption_last is None else shown
        first, second = unique_pairs(*candidates(searched, groups, shown, _ALIKE), alignment.is_ordered)
        found.append(_within(radius, alignment, thumbnails, first, second))
    return joined(found)


def confirmed_pairs(thumbnails: Thumbnails, first: Numbers, second: Numbers, radius: float) -> Pairs:
    """The pairs that are within a radius by an alignment."""
    return joined([_within(radius, alignment, thumbnails, first, second) for alignment in ALIGNMENTS])


def neighbor_pairs(embeddings: Tensor) -> tuple[Numbers, Numbers]:
    """Each image and its eight nearest ones by embeddings ``[N, D]``."""
    return unique_pairs(*NearestVectors(embeddings).pairs(embeddings))


def distances_from(
    thumbnails: Thumbnails, kept: int, others: Sequence[int], alignments: Sequence[Alignment]
) -> list[FromKept]:
    """The distance of each image from the one to keep, and the changes of the best alignment."""
    second = np.asarray(others, dtype=np.int64)
    first = np.full_like(second, kept)
    plain = thumbnails.distances(first, second)
    distances = plain.copy()
    changes: list[tuple[str, ...]] = [()] * len(second)
    for alignment in alignments:
        aligned = alignment.distances(thumbnails, first, second)
        for place in np.flatnonzero(aligned < np.minimum(distances, _BETTER * plain)):
            distances[place] = aligned[place]
            changes[place] = alignment.changes
    return [*zip(distances.tolist(), changes, strict=True)]


def _rows_of(thumbnails: Thumbnails, rows: Numbers) -> Thumbnails:
    return Thumbnails(thumbnails.gray[rows], thumbnails.colors[rows])


def _show_caption(first: Tensor, second: Tensor, pairs: tuple[Numbers, Numbers]) -> NDArray[np.bool_]:
    """Whether one image of each pair has a caption in the last eighth of its thumbnail, ``[N, 64, 64]``.

    The background of a caption is plain, and the difference between the thumbnails changes at its edge.
    """
    one, other = pairs
    is_plain, contrasts, rows = _last_rows(first)
    is_plain_too, other_contrasts, other_rows = _last_rows(second)
    scale = (contrasts[one] + other_contrasts[other]) / 2
    differences = (rows[one] - other_rows[other]) * scale[:, None, None]
    jumps = (differences[:, 3:] - differences[:, :-3]).abs()
    is_edge = (jumps >= _JUMP).float().mean(2) >= _ACROSS
    has_caption: NDArray[np.bool_] = (is_edge & (is_plain[one] | is_plain_too[other])).any(1).numpy()
    return has_caption


def _last_rows(gray: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For each pair of rows near a caption's edge: whether the rows below are plain, and normalized levels.

    Between the two is the contrast of the rest, by which levels are normalized.
    """
    shown = gray.float()
    rest = shown[:, :_REST].flatten(1)
    contrasts = rest.std(1).clamp(min=1)
    rows = (shown[:, _REST - 4 : -1] + shown[:, _REST - 3 :]) / 2
    below = rows[:, 3:]
    off_background = (below - below.median(2, keepdim=True).values).abs()
    is_plain = (off_background <= _PLAIN).float().mean(2) >= _ACROSS
    return is_plain, contrasts, (rows - rest.mean(1)[:, None, None]) / contrasts[:, None, None]


def _within(radius: float, alignment: Alignment, thumbnails: Thumbnails, first: Numbers, second: Numbers) -> Pairs:
    pairs = Pairs(first, second, alignment.distances(thumbnails, first, second))
    limit = radius if alignment.caption_last is None else _CAPTIONED * radius
    pairs = pairs.where(pairs.distances <= limit)
    return pairs.where(pairs.distances < _BETTER * thumbnails.distances(pairs.first, pairs.second))
