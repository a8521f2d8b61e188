"""Pictures of queries and their answers; an image that is gone leaves a placeholder, not a failure."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image, ImageDraw
from torch import Tensor

from ..data import read_image
from ..errors import DataError
from ..evaluation.figures import galleries
from ..evaluation.fonts import short_name
from .search import Answer, RetrievalWarning

PICTURED = 50  # answers of a query in one picture; more have pictures of their own
PAGES = 20  # pictures at most
_PANELS = 600  # in one picture: it is as high as queries need, and 65,536 pixels is the end
_SHOWN = 220  # pixels of a small picture's longer side, twice what it is drawn with
_SIZE = 64  # of a placeholder, in pixels

Source = tuple[str, Sequence[Answer], Path]
"""Title, answers and the folder of their images, of a run."""


def thumbnail(path: Path, channels: int = 3, longest: int = _SHOWN) -> Image.Image:
    """A small picture of an image file, upright; a JPEG is decoded at an eighth of its size where that is enough.

    *Cost:* about 20 ms for a JPEG of 12 megapixels, against 100 ms for all pixels (``tests/retrieval/sheets.py``).

    Args:
        path: the file.
        channels: what it is read as: 1 (gray) or 3 (color).
        longest: pixels of its longer side at most.

    Raises:
        DataError: the file is missing, no image, or broken; the text has the path.
    """
    try:
        if not path.exists():
            raise DataError(f"{path}: no such file")
        pixels = read_image(path, channels, smallest=longest)
    except OSError as error:  # a name that the system refuses, a disk that fails
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
    image = Image.fromarray(pixels[0].numpy() if channels == 1 else pixels.permute(1, 2, 0).numpy())
    image.thumbnail((longest, longest), reducing_gap=2.0)
    return image


def placeholder(size: int = _SIZE) -> Image.Image:
    """What stands for an image that cannot be shown: a gray square with a cross.

    Args:
        size: of its sides, in pixels.
    """
    image = Image.new("L", (size, size), 225)
    draw = ImageDraw.Draw(image)
    for start, end in (((0, 0), (size, size)), ((0, size - 1), (size, -1))):
        draw.line((start, end), fill=140, width=max(1, size // 21))
    return image


class PictureReader:
    """Reads small pictures; one that cannot be read is a placeholder, and is remembered.

    Args:
        channels: what files are read as: 1 (gray) or 3 (color).
    """

    def __init__(self, channels: int) -> None:
        self.channels = channels
        self.missing: dict[Path, str] = {}

    def image(self, path: Path, longest: int = _SHOWN) -> Image.Image:
        """The picture, with a longer side of at most this many pixels."""
        try:
            return thumbnail(path, self.channels, longest)
        except DataError as error:
            self.missing[path] = str(error)
            return placeholder()

    def __call__(self, path: Path) -> Tensor:
        """The picture, uint8 ``[C, H, W]``."""
        pixels: Any = np.array(self.image(path).convert("L" if self.channels == 1 else "RGB"))
        return torch.from_numpy(pixels).reshape(*pixels.shape[:2], self.channels).permute(2, 0, 1)

    def warn(self, what: str) -> None:
        """Says which images could not be read, if there are some.

        Args:
            what: the start of the sentence, ``"the picture has"``.
        """
        if self.missing:
            count, first = len(self.missing), next(iter(self.missing.values()))
            images = "an image" if count == 1 else f"{count} images"
            warnings.warn(
                f"{what} a placeholder for {images} that cannot be read; the first: {first}",
                RetrievalWarning,
                stacklevel=3,
            )


def answers_picture(sources: Sequence[Source], channels: int) -> Figure:
    """Queries and the nearest of their answers, at most 50 of each; see :func:`answers_pictures`."""
    reader = PictureReader(channels)
    queries = range(len(sources[0][1]))
    figure = galleries([row for number in queries for row in _rows(sources, number, 0)], reader)
    reader.warn("the picture has")
    return figure


def answers_pictures(sources: Sequence[Source], channels: int) -> Iterator[Figure]:
    """Queries and their answers, framed green and red where the classes are known: 50 answers in each picture.

    Args:
        sources: of each run that answered the same queries.
        channels: what files are read as: 1 (gray) or 3 (color).

    Yields:
        Pictures of the first queries, from the nearest answers on, then of the next; at most 20, and a
        :class:`RetrievalWarning` where there would be more.
    """
    reader = PictureReader(channels)
    pages = list(_pages(sources))
    for first, last, start in pages[:PAGES]:
        yield galleries([row for number in range(first, last) for row in _rows(sources, number, start)], reader)
    reader.warn("the picture has" if len(pages) == 1 else "the pictures have")
    if len(pages) > PAGES:
        warnings.warn(
            f"{PAGES} of {len(pages)} pictures: more are not drawn; all answers are in the table and in --json",
            RetrievalWarning,
            stacklevel=2,
        )


def _pages(sources: Sequence[Source]) -> Iterator[tuple[int, int, int]]:
    """The first query of each picture, the one behind its last, and the first answer."""
    queries = len(sources[0][1])
    most = max((len(answer.paths) for _, answers, _ in sources for answer in answers), default=0)
    together = max(1, _PANELS // (len(sources) * (min(most, PICTURED) + 1)))
    for first in range(0, queries, together):
        for start in range(0, max(1, most), PICTURED):
            yield first, min(queries, first + together), start


def _rows(
    sources: Sequence[Source], number: int, start: int
) -> Iterator[tuple[str, Path, list[tuple[Path, str, bool | None]]]]:
    for title, answers, folder in sources:
        answer, known = answers[number], answers[number].query_class is not None
        nearest = list(zip(answer.paths, answer.distances, answer.classes, strict=True))[start : start + PICTURED]
        lines = [short_name(Path(answer.query).name), short_name(answer.query_class or "")]
        lines += [short_name(title)] * (len(sources) > 1)
        yield (
            "\n".join(line for line in lines if line),
            Path(answer.query),
            [
                (
                    folder / path,
                    f"{distance:.2f}" + f"\n{short_name(name)}" * bool(name),
                    name == answer.query_class if known else None,
                )
                for path, distance, name in nearest
            ],
        )
