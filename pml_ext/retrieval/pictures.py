"""Pictures of queries and their answers; an image that is gone leaves a placeholder, not a failure."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw
from torch import Tensor

from ..collection import RetrievalWarning
from ..data import image_tensor, read_image
from ..errors import DataError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..evaluation.figures import Cell
    from .query import Answer

PICTURED = 50  # answers of a query in a picture
_PANELS = 600  # images of a picture: it is as high as queries need, and 65,536 pixels is the end
_THUMBNAIL = 220  # pixels of a small picture's longer side, twice what it is drawn with


def thumbnail(path: Path, channels: int = 3, longest: int = _THUMBNAIL) -> Image.Image:
    """Read a small picture of an image file, upright; a JPEG is decoded small where that is enough.

    *Cost:* about 20 ms for a JPEG of 12 megapixels, against 100 ms for all pixels (``benchmarks/contact_sheets.py``).
    """
    pixels = read_image(path, channels, smallest=longest)
    image = Image.fromarray(pixels[0].numpy() if channels == 1 else pixels.permute(1, 2, 0).numpy())
    image.thumbnail((longest, longest), reducing_gap=2.0)
    return image


def placeholder(size: int = 64) -> Image.Image:
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

    def image(self, path: Path, longest: int = _THUMBNAIL) -> Image.Image:
        """Read a picture, with a longer side of at most this many pixels."""
        try:
            return thumbnail(path, self.channels, longest)
        except DataError as error:
            self.missing[path] = str(error)
            return placeholder()

    def __call__(self, path: Path) -> Tensor:
        """Read a picture as uint8 ``[C, H, W]``."""
        return image_tensor(self.image(path), self.channels)

    def warn(self, what: str) -> None:
        """Warn of the images that could not be read, if there are some."""
        if self.missing:
            images = "an image" if len(self.missing) == 1 else f"{len(self.missing)} images"
            text = f"{what} a placeholder for {images} that cannot be read; the first: "
            warnings.warn(text + next(iter(self.missing.values())), RetrievalWarning, stacklevel=3)


def answers_picture(answers: Sequence[Answer], folder: Path, channels: int) -> Figure:
    """Draw queries and their answers, at most 50 of each, framed green and red where the classes are known."""
    from ..evaluation.figures import BLUE, answer, gallery
    from ..evaluation.fonts import short_name

    reader, rows = PictureReader(channels), []
    most = min(max((len(each.paths) for each in answers), default=0), PICTURED)
    drawn = answers[: max(1, _PANELS // (most + 1))]
    for each in drawn:
        query, own = Path(each.query), each.query_class
        caption = f"{short_name(query.name)}\n{short_name(own or '')}".strip()
        row: list[Cell | None] = [(reader(query), caption, BLUE) if query.is_file() else None]
        for path, distance, name in list(zip(each.paths, each.distances, each.classes, strict=True))[:PICTURED]:
            lines = [f"{distance:.2f}", *([short_name(name)] if name else []), short_name(Path(path).name)]
            row.append(answer(reader(folder / path), "\n".join(lines), None if own is None else name == own))
        rows.append(row)
    figure = gallery(rows)
    reader.warn("the picture has")
    if len(drawn) < len(answers):
        text = f"the picture has the first {len(drawn)} of {len(answers)} queries"
        warnings.warn(text, RetrievalWarning, stacklevel=3)
    return figure
