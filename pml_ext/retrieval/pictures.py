"""Pictures of queries and their answers; an image that is gone leaves a placeholder, not a failure."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from ..data import read_image
from ..errors import DataError
from .checks import RetrievalWarning

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..evaluation.figures import Cell
    from .query import Answer

PICTURED = 50  # answers of a query in a picture
_PANELS = 600  # images of a picture: it is as high as queries need, and 65,536 pixels is the end
_SHOWN = 220  # pixels of a small picture's longer side, twice what it is drawn with
_SIZE = 64  # of a placeholder, in pixels

Source = tuple[str, Sequence["Answer"], Path]
"""Title, answers and the folder of their images, of a run."""


def thumbnail(path: Path, channels: int = 3, longest: int = _SHOWN) -> Image.Image:
    """Read a small picture of an image file, upright; a JPEG is decoded small where that is enough.

    *Cost:* about 20 ms for a JPEG of 12 megapixels, against 100 ms for all pixels (``benchmarks/contact_sheets.py``).
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
    """Return a gray square with a cross, which stands for an image that cannot be shown."""
    image = Image.new("L", (size, size), 225)
    draw = ImageDraw.Draw(image)
    for start, end in (((0, 0), (size, size)), ((0, size - 1), (size, -1))):
        draw.line((start, end), fill=140, width=max(1, size // 21))
    return image


class PictureReader:
    """Reads small pictures; one that cannot be read is a placeholder, and is remembered."""

    def __init__(self, channels: int) -> None:
        self.channels = channels
        self.missing: dict[Path, str] = {}

    def image(self, path: Path, longest: int = _SHOWN) -> Image.Image:
        """Read a picture, with a longer side of at most this many pixels."""
        try:
            return thumbnail(path, self.channels, longest)
        except DataError as error:
            self.missing[path] = str(error)
            return placeholder()

    def __call__(self, path: Path) -> Tensor:
        """Read a picture as uint8 ``[C, H, W]``."""
        pixels: Any = np.array(self.image(path).convert("L" if self.channels == 1 else "RGB"))
        return torch.from_numpy(pixels).reshape(*pixels.shape[:2], self.channels).permute(2, 0, 1)

    def warn(self, what: str) -> None:
        """Warn of the images that could not be read, if there are some."""
        if self.missing:
            count, first = len(self.missing), next(iter(self.missing.values()))
            images = "an image" if count == 1 else f"{count} images"
            text = f"{what} a placeholder for {images} that cannot be read; the first: {first}"
            warnings.warn(text, RetrievalWarning, stacklevel=3)


def answers_picture(sources: Sequence[Source], channels: int) -> Figure:
    """Draw queries and their answers, at most 50 of each, framed green and red where the classes are known."""
    from ..evaluation.figures import gallery

    reader, queries = PictureReader(channels), len(sources[0][1])
    most = max((len(answer.paths) for _, answers, _ in sources for answer in answers), default=0)
    drawn = min(queries, max(1, _PANELS // (len(sources) * (min(most, PICTURED) + 1))))
    figure = gallery([row for number in range(drawn) for row in _rows(sources, number, reader)])
    reader.warn("the picture has")
    if drawn < queries:
        text = f"the picture has the first {drawn} of {queries} queries; all answers are in the table and in --json"
        warnings.warn(text, RetrievalWarning, stacklevel=3)
    return figure


def _rows(sources: Sequence[Source], number: int, reader: PictureReader) -> Iterator[list[Cell | None]]:
    from ..evaluation.figures import BLUE, answer
    from ..evaluation.fonts import short_name

    for title, answers, folder in sources:
        found, query = answers[number], Path(answers[number].query)
        lines = [query.name, found.query_class or "", title if len(sources) > 1 else ""]
        caption = "\n".join(short_name(line) for line in lines if line)
        row: list[Cell | None] = [(reader(query), caption, BLUE) if query.is_file() else None]
        for path, distance, name in list(zip(found.paths, found.distances, found.classes, strict=True))[:PICTURED]:
            lines = [f"{distance:.2f}", *([short_name(name)] if name else []), short_name(Path(path).name)]
            right = None if found.query_class is None else name == found.query_class
            row.append(answer(reader(folder / path), "\n".join(lines), right))
        yield row
