"""Thumbnails of image files."""

import warnings
from pathlib import Path

from PIL import Image
from torch import Tensor

from pml_ext.errors import DataError

from ..data import image_tensor, placeholder, thumbnail
from ..retrieval import RetrievalWarning

THUMBNAIL = 220  # longer side of a thumbnail in pixels, twice its size in the figure


class PictureReader:
    """Reader of thumbnails, with placeholders for unreadable images."""

    def __init__(self, channels: int) -> None:
        self.channels = channels
        self.missing: dict[Path, str] = {}

    def image(self, path: Path, longest: int = THUMBNAIL) -> Image.Image:
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
        """Warn about unreadable images."""
        if self.missing:
            images = "an image" if len(self.missing) == 1 else f"{len(self.missing)} images"
            text = f"{what} a placeholder for {images} that cannot be read; the first: "
            warnings.warn(text + next(iter(self.missing.values())), RetrievalWarning, stacklevel=3)
