"""Small gray thumbnails of images, and distances that allow for cropping."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from pml_ext.errors import DataError
from pml_ext.evaluation import inverted_lists, nearest_of
from pml_ext_train.data import read_image
from pml_ext_train.retrieval import Numbers, Vectors

STORED = 64  # side of a thumbnail in pixels
COMPARED = 16  # side of what is compared, of a thumbnail or of a part of it
DETAILED = 48  # side at which details are compared
NEIGHBORS = 8  # nearest images that each part is compared with
NOISE = 2.0  # gray levels; weaker structure does not count
_DETAIL = 9  # of 48 pixels; slower variations are not details
_DETAIL_NOISE = 0.5  # gray levels; weaker detail does not count
_READ = 256  # files that are read at a time
_READERS = 8  # threads that read, at most
FITTED = 0.7  # product from which on the best part is fitted, a distance of 0.77
_STEPS = 8
_FITTED_BLOCK = 512  # pairs that are fitted at a time
_BLOCK = 64  # images whose parts are held at a time
_TILE = 4096  # vectors that are compared with one part of each image of a block

Part = tuple[float, float, float, float]
"""Width and height of a part as fractions of the image, and the place of its center, from -1 to 1 each."""

WHOLE: Part = (1.0, 1.0, 0.0, 0.0)


def _parts() -> list[Part]:
    """The whole image, and parts with 78 to 97 % of one side or both."""
    parts = [WHOLE]
    for kept in (0.97, 0.94, 0.9, 0.86, 0.82, 0.78):
        places = (-1.0, 0.0, 1.0) if kept > 0.92 else (-1.0, -0.5, 0.0, 0.5, 1.0)
        for x in places:
            parts += [(kept, kept, x * (1 - kept), y * (1 - kept)) for y in places]
    for kept in (0.94, 0.88):
        for place in (-1.0, 0.0, 1.0):
            parts.append((1.0, kept, 0.0, place * (1 - kept)))
            parts.append((kept, 1.0, place * (1 - kept), 0.0))
    return parts


PARTS = _parts()
_MOVES = [
    (0.0, 0.0, 1.0, 0.0),
    (0.0, 0.0, -1.0, 0.0),
    (0.0, 0.0, 0.0, 1.0),
    (0.0, 0.0, 0.0, -1.0),
    (1.0, 1.0, 0.0, 0.0),
    (-1.0, -1.0, 0.0, 0.0),
    (1.0, 0.0, 0.0, 0.0),
    (-1.0, 0.0, 0.0, 0.0),
    (0.0, 1.0, 0.0, 0.0),
    (0.0, -1.0, 0.0, 0.0),
]
COARSE_PARTS: list[Part] = [
    WHOLE,
    (0.94, 0.94, 0.0, 0.0),
    (0.86, 0.86, 0.0, 0.0),
    (0.86, 0.86, -0.14, -0.14),
    (0.86, 0.86, -0.14, 0.14),
    (0.86, 0.86, 0.14, -0.14),
    (0.86, 0.86, 0.14, 0.14),
]


def thumbnail_of(image: Image.Image) -> Tensor:
    """An image as uint8 ``[3, 64, 64]``: luminance, and two differences of color."""
    small = image.convert("RGB").resize((STORED, STORED), Image.Resampling.BOX).convert("YCbCr")
    return torch.from_numpy(np.asarray(small).copy()).permute(2, 0, 1)


class Thumbnails:
    """Gray thumbnails and mean colors of images, and the vectors made from them.

    A vector has the luminance of a thumbnail, or of a part, at 16 x 16 pixels, without its mean and divided by its
    length. For an image without structure, the mean color counts. Details are 48 x 48 pixels less the mean of 9 x 9
    around each.
    """

    def __init__(self, gray: Tensor, colors: Tensor) -> None:
        self.gray = gray  # uint8 [N, 64, 64]
        self.colors = colors  # [N, 3]

    @classmethod
    def of(cls, images: Tensor) -> Thumbnails:
        """Thumbnails of images as :func:`thumbnail_of` returns them, stacked."""
        starts = range(0, max(1, len(images)), _TILE)
        colors = [images[start : start + _TILE].flatten(2).float().mean(2) for start in starts]
        return cls(images[:, 0].contiguous(), torch.cat(colors))

    def __len__(self) -> int:
        return len(self.gray)

    def vectors(self, rows: Numbers | slice, parts: Sequence[Part] = (WHOLE,)) -> Tensor:
        """Vectors of length 1 of parts of thumbnails, ``[B, parts, D]``."""
        smooth, flat = self._smooth(rows)
        return _vectors_of(smooth, flat, torch.tensor(parts).expand(len(smooth), -1, 4))

    def coarse_distances(self, first: Numbers, second: Numbers) -> Vectors:
        """A quick upper bound of the first part of :meth:`distances`, by seven parts of each image."""
        nearest = torch.full((len(first),), -1.0)
        for part in COARSE_PARTS:
            vectors = self.vectors(slice(None), [part])[:, 0]
            for one, other in ((first, second), (second, first)):
                nearest = torch.maximum(nearest, (vectors[one] * self.wholes[other]).sum(1))
        distances: Vectors = (2 - 2 * nearest).clamp(min=0).sqrt().numpy()
        return distances

    def fractions_of_details(self) -> Vectors:
        """The fraction of each image with details, from 0 to 1."""
        fractions: Vectors = (_raw_details_of(self.gray.float()[:, None]).abs() >= NOISE).float().mean(1).numpy()
        return fractions

    def _smooth(self, rows: Numbers | slice) -> tuple[Tensor, Tensor]:
        """Smoothed thumbnails ``[B, 1, 64, 64]``, and color entries, ``[B, 4]``."""
        gray = self.gray[rows].float().unsqueeze(1)
        smooth = nn.functional.avg_pool2d(nn.functional.pad(gray, (1, 1, 1, 1), mode="replicate"), 3, 1)
        colors = self.colors[rows] - 128
        colors[:, 1:] *= 2
        colors = nn.functional.pad(colors, (0, 1), value=STORED)
        return smooth, NOISE * COMPARED * nn.functional.normalize(colors)

    @functools.cached_property
    def wholes(self) -> Tensor:
        """The vectors of all whole thumbnails, ``[N, D]``."""
        tiles = [self.vectors(slice(start, start + _TILE))[:, 0] for start in range(0, len(self), _TILE)]
        return torch.cat([torch.empty(0, COMPARED**2 + 4), *tiles])

    def distances(self, first: Numbers, second: Numbers) -> Vectors:
        r"""The distance of each pair: the smallest from a part of one image to the other image.

        .. math:: d = \max(\lVert s - s' \rVert, \tfrac{1}{2} \lVert t - t' \rVert)

        s are the vectors of the best part and the whole image, t their normalized details, which are only computed if
        the first are within 0.77.

        Args:
            first: numbers of images, ``[P]``.
            second: numbers of images, ``[P]``.
        """
        both = np.stack([first, second])
        products, best = self._best_parts(both, both[::-1])
        columns = np.arange(len(first))
        direction = products.argmax(0)
        nearest = products[direction, columns]
        fitted = np.flatnonzero(nearest >= FITTED)
        for start in range(0, len(fitted), _FITTED_BLOCK):
            pairs = fitted[start : start + _FITTED_BLOCK]
            rows, others = both[direction[pairs], pairs], both[1 - direction[pairs], pairs]
            parts = torch.tensor(PARTS)[best[direction[pairs], pairs]]
            of_structure, parts = self._fitted(rows, self.wholes[others], parts)
            of_details = self._products_of_details(rows, parts, others)
            nearest[pairs] = torch.minimum(of_structure, 1 - (1 - of_details) / 4).numpy()
        distances: Vectors = np.sqrt(np.maximum(2 - 2 * nearest, 0))
        return distances

    def _best_parts(self, rows: Numbers, others: Numbers) -> tuple[Vectors, Numbers]:
        """The largest product of a part of each image with another whole one, and the part."""
        products = np.zeros(rows.shape, dtype=np.float32)
        best = np.zeros(rows.shape, dtype=np.int64)
        order = np.argsort(rows.ravel(), kind="stable")
        images, begins = np.unique(rows.ravel()[order], return_index=True)
        of_images = np.split(order, begins[1:])
        for block in range(0, len(images), _BLOCK):
            parts = self.vectors(images[block : block + _BLOCK], PARTS)
            for of_parts, pairs in zip(parts, of_images[block : block + _BLOCK], strict=True):
                largest = (of_parts @ self.wholes[others.ravel()[pairs]].T).max(dim=0)
                products.flat[pairs] = largest.values.numpy()
                best.flat[pairs] = largest.indices.numpy()
        return products, best

    def _products_of_details(self, rows: Numbers, parts: Tensor, wholes: Numbers) -> Tensor:
        """Products ``[B]`` of details of parts ``[B, 4]`` and whole images."""
        whole = torch.tensor([WHOLE]).expand(len(rows), 1, 4)
        one = _details_of(_sampled(self.gray[rows].float()[:, None], parts[:, None], DETAILED))
        other = _details_of(_sampled(self.gray[wholes].float()[:, None], whole, DETAILED))
        return (one * other).sum(1)

    def _fitted(self, rows: Numbers, others: Tensor, parts: Tensor) -> tuple[Tensor, Tensor]:
        """Products ``[B]`` of whole images with the best parts of others, and these parts.

        Each step applies the best of ten small changes to the parts ``[B, 4]``, or halves the changes.
        """
        smooth, flat = self._smooth(rows)
        products = (_vectors_of(smooth, flat, parts[:, None])[:, 0] * others).sum(1)
        moves = torch.tensor(_MOVES)
        change = torch.full((len(rows), 1), 0.04)
        for _ in range(_STEPS):
            tried = _inside(parts[:, None] + change[:, None] * moves)
            largest = (_vectors_of(smooth, flat, tried) * others[:, None]).sum(2).max(dim=1)
            is_better = largest.values > products
            chosen = tried[torch.arange(len(rows)), largest.indices]
            parts = torch.where(is_better[:, None], chosen, parts)
            products = torch.maximum(products, largest.values)
            change = torch.where(is_better[:, None], change, change / 2)
        return products, parts


def _inside(parts: Tensor) -> Tensor:
    sides = parts[..., :2].clamp(0.75, 1)
    room = 1 - sides
    return torch.cat([sides, parts[..., 2:].clamp(-room, room)], -1)


def _vectors_of(smooth: Tensor, flat: Tensor, parts: Tensor) -> Tensor:
    """Vectors ``[B, P, D]`` of parts ``[B, P, 4]`` of smoothed thumbnails ``[B, 1, 64, 64]``."""
    images, count, _ = parts.shape
    shown = _sampled(smooth, parts, COMPARED).view(images, count, COMPARED**2)
    shown = shown - shown.mean(2, keepdim=True)
    return nn.functional.normalize(torch.cat([shown, flat[:, None].expand(-1, count, -1)], 2), dim=2)


def _sampled(gray: Tensor, parts: Tensor, side: int) -> Tensor:
    """Parts ``[B, P, 4]`` of thumbnails at another size, ``[B, 1, P * side, side]``."""
    count = parts.shape[1]
    width, height, x, y = parts.unsqueeze(-1).unbind(2)
    centers = (2 * torch.arange(side) + 1) / side - 1
    across = (centers * width + x)[:, :, None, :].expand(-1, count, side, -1)
    down = (centers * height + y)[:, :, :, None].expand(-1, count, -1, side)
    grid = torch.stack([across, down], -1).flatten(1, 2)
    return nn.functional.grid_sample(gray, grid, align_corners=False, padding_mode="border")


def _details_of(shown: Tensor) -> Tensor:
    """Details of images ``[B, 1, 48, 48]`` as vectors of length 1."""
    details = _raw_details_of(shown)
    none = torch.full((len(details), 1), _DETAIL_NOISE * DETAILED)
    return nn.functional.normalize(torch.cat([details, none], 1), dim=1)


def _raw_details_of(shown: Tensor) -> Tensor:
    margin = _DETAIL // 2
    padded = nn.functional.pad(shown, (margin, margin, margin, margin), mode="replicate")
    return (shown - nn.functional.avg_pool2d(padded, _DETAIL, 1)).flatten(1)


def candidates(
    thumbnails: Thumbnails, groups: Sequence[Numbers], turned: Thumbnails | None = None, farthest: float = math.inf
) -> tuple[Numbers, Numbers]:
    """Pairs of images that may be copies: for parts of each, the eight nearest whole images.

    With faiss and more than 20,000 images, a part is compared with 16 lists of an index.

    Args:
        thumbnails: of all images.
        groups: all numbers, or two sets that are searched for each other.
        turned: the same images, turned. The first image of a pair is then the turned one; otherwise it has the smaller
            number.
        farthest: distance of a part beyond which pairs are left out.
    """
    shown = thumbnails if turned is None else turned
    found = [unique_pairs(groups[0][:0], groups[0][:0])]
    for queries, searched in {(0, len(groups) - 1), (len(groups) - 1, 0)}:
        nearest = NearestVectors(thumbnails.wholes[groups[searched]])
        for rows in np.split(groups[queries], range(_TILE, len(groups[queries]), _TILE)):
            if not nearest.count or not len(rows):
                continue
            for part in COARSE_PARTS:
                one, other = nearest.pairs(shown.vectors(rows, [part])[:, 0], farthest)
                found.append(unique_pairs(rows[one], groups[searched][other], is_ordered=turned is not None))
    first, second = map(np.concatenate, zip(*found, strict=True))
    return unique_pairs(first, second, is_ordered=True)


def unique_pairs(first: Numbers, second: Numbers, is_ordered: bool = False) -> tuple[Numbers, Numbers]:
    """Sorted pairs of different numbers, each once; unless they are ordered, the smaller number first."""
    both = np.stack([first, second])
    both = both[:, first != second]
    if not is_ordered:
        both.sort(axis=0)
    total = int(both.max(initial=0)) + 1
    codes = np.unique(both[0] * total + both[1])
    return codes // total, codes % total


class NearestVectors:
    """The nine nearest of some vectors: eight neighbors, and perhaps the query itself."""

    def __init__(self, vectors: Tensor) -> None:
        self.count = min(NEIGHBORS + 1, len(vectors))
        self._vectors = vectors
        self._lists = inverted_lists(vectors.numpy())

    def pairs(self, queries: Tensor, farthest: float = math.inf) -> tuple[Numbers, Numbers]:
        """Rows of queries and of the vectors nearest to each, up to a distance."""
        if self._lists is None:
            distances, places = (array.numpy() for array in nearest_of(queries, self.count, self._vectors))
        else:
            squares, places = self._lists.search(queries.numpy(), self.count)
            distances = np.sqrt(np.maximum(squares, 0))
            places = np.where(places < 0, places[:, :1], places)  # where the lists have too few
        rows, columns = np.nonzero(distances <= farthest)
        return rows, places[rows, columns]


def read_thumbnails(
    files: Sequence[Path], listener: Callable[[int], None] | None = None
) -> tuple[Thumbnails, dict[int, str]]:
    """Thumbnails of files, and the problems of unreadable ones, whose thumbnails are black.

    A JPEG is decoded at a reduced size. ``listener`` receives the number of files read so far.
    """
    images = torch.zeros(len(files), 3, STORED, STORED, dtype=torch.uint8)
    problems: dict[int, str] = {}
    with ThreadPoolExecutor(_READERS) as pool:
        for start in range(0, len(files), _READ):
            for place, image in enumerate(pool.map(_read, files[start : start + _READ]), start):
                if isinstance(image, str):
                    problems[place] = image
                else:
                    images[place] = image
                if listener is not None:
                    listener(place + 1)
    return Thumbnails.of(images), problems


def _read(file: Path) -> Tensor | str:
    try:
        pixels = read_image(file, 3, smallest=2 * STORED)
    except DataError as error:
        return str(error)
    return thumbnail_of(Image.fromarray(pixels.permute(1, 2, 0).numpy()))
