"""Pictures of queries and their answers; an image that is gone leaves a placeholder, not a failure."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

from ..data import read_image
from ..errors import DataError
from ..evaluation.figures import galleries
from .search import Answer, RetrievalWarning

PICTURED = 50  # answers of a query in its picture: a panel takes 20 ms, and a thousand take minutes
_SIZE = 64  # of a placeholder, in pixels


class PictureReader:
    """Reads images for a picture; one that cannot be read is a gray square with a cross, and is remembered.

    Args:
        channels: what files are read as: 1 (gray) or 3 (color).
    """

    def __init__(self, channels: int) -> None:
        self.channels = channels
        self.missing: dict[Path, str] = {}

    def __call__(self, path: Path) -> Tensor:
        """The image, uint8 ``[C, H, W]``."""
        try:
            if not path.exists():
                raise DataError(f"{path}: no such file")
            return read_image(path, self.channels)
        except (DataError, OSError) as error:
            self.missing[path] = str(error)
            return _placeholder(self.channels)

    def warn(self, what: str) -> None:
        """Says which images could not be read, if there are some.

        Args:
            what: the start of the sentence, ``"the picture has"``.
        """
        if self.missing:
            count, first = len(self.missing), next(iter(self.missing.values()))
            images = "an image" if count == 1 else f"{count} images"
            warnings.warn(f"{what} a placeholder for {images} that cannot be read; the first: {first}",
                          RetrievalWarning, stacklevel=3)  # fmt: skip


def _placeholder(channels: int) -> Tensor:
    row, column = torch.arange(_SIZE)[:, None], torch.arange(_SIZE)
    cross = torch.minimum((row - column).abs(), (row + column - _SIZE + 1).abs()) < 2
    return torch.where(cross, 140, 225).to(torch.uint8).expand(channels, _SIZE, _SIZE)


def answers_picture(
    sources: Sequence[tuple[str, Sequence[Answer], Path]], channels: int, most: int = PICTURED
) -> Figure:
    """Queries and their answers, framed green and red where the classes are known.

    Args:
        sources: title, answers and the folder of their images, for each run that answered the same queries.
        channels: what files are read as: 1 (gray) or 3 (color).
        most: answers of a query that are drawn.
    """
    reader, rows = PictureReader(channels), []
    for number in range(len(sources[0][1])):
        for title, answers, folder in sources:
            answer, known = answers[number], answers[number].query_class is not None
            nearest = list(zip(answer.paths, answer.distances, answer.classes, strict=True))[:most]
            rows.append((
                f"{Path(answer.query).name}\n{title if len(sources) > 1 else ''}", Path(answer.query),
                [(folder / path, f"{distance:.2f}", name == answer.query_class if known else None)
                 for path, distance, name in nearest],
            ))  # fmt: skip
    figure = galleries(rows, reader)
    reader.warn("the picture has")
    return figure


def as_png(figure: Figure) -> Callable[[Path], None]:
    """What writes a figure to a path, whatever the path ends in."""
    return lambda path: figure.savefig(path, format="png")
