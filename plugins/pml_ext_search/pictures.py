"""Pictures of queries and their answers, with a placeholder for each image that cannot be read."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image
from torch import Tensor

from pml_ext.errors import DataError
from pml_ext_train.data import image_tensor, placeholder, thumbnail

from .problems import RetrievalWarning

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pml_ext_train.report import Cell

    from .query import Answer

PICTURED = 50  # answers of a query in a picture
_PANELS = 600  # maximum images in a picture, which keeps its height below 65,536 pixels
_THUMBNAIL = 220  # longer side of a thumbnail in pixels, twice its size in the figure


class PictureReader:
    """Reader of thumbnails that replaces unreadable images by placeholders and records their errors."""

    def __init__(self, channels: int) -> None:
        self.channels = channels
        self.missing: dict[Path, str] = {}

    def image(self, path: Path, longest: int = _THUMBNAIL) -> Image.Image:
        """Return a thumbnail whose longer side has at most ``longest`` pixels."""
        try:
            return thumbnail(path, self.channels, longest)
        except DataError as error:
            self.missing[path] = str(error)
            return placeholder()

    def __call__(self, path: Path) -> Tensor:
        """Return a thumbnail as uint8 ``[C, H, W]``."""
        return image_tensor(self.image(path), self.channels)

    def warn(self, what: str) -> None:
        """Warn of the images that could not be read, if any."""
        if self.missing:
            images = "an image" if len(self.missing) == 1 else f"{len(self.missing)} images"
            text = f"{what} a placeholder for {images} that cannot be read; the first: "
            warnings.warn(text + next(iter(self.missing.values())), RetrievalWarning, stacklevel=3)


def answers_picture(answers: Sequence[Answer], folder: Path, channels: int) -> Figure:
    """Draw queries, each with at most 50 answers, framed green (right) or red (wrong) if the classes are known."""
    from pml_ext_train.report import BLUE, answer, gallery, short_name

    reader = PictureReader(channels)
    rows = []
    most = min(max((len(each.paths) for each in answers), default=0), PICTURED)
    drawn = answers[: max(1, _PANELS // (most + 1))]
    for each in drawn:
        query = Path(each.query)
        row: list[Cell | None] = [None]
        if query.is_file():
            caption = f"{short_name(query.name)}\n{short_name(each.query_class or '')}".strip()
            row = [(reader(query), caption, BLUE)]
        answers_of_query = zip(each.paths, each.distances, each.classes, strict=True)
        for path, distance, name in itertools.islice(answers_of_query, PICTURED):
            lines = [f"{distance:.2f}"]
            if name:
                lines.append(short_name(name))
            lines.append(short_name(Path(path).name))
            right = None if each.query_class is None else name == each.query_class
            row.append(answer(reader(folder / path), "\n".join(lines), right))
        rows.append(row)
    figure = gallery(rows)
    reader.warn("the picture has")
    if len(drawn) < len(answers):
        text = f"the picture has the first {len(drawn)} of {len(answers)} queries"
        warnings.warn(text, RetrievalWarning, stacklevel=3)
    return figure
