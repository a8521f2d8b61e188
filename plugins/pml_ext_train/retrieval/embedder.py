"""The interface from images to embeddings."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from .stores import Vectors

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor


class Embedder(Protocol):
    """Turns images into vectors, with a network or a few lines of NumPy."""

    @property
    def identity(self) -> str:
        """A name that changes with the embeddings."""

    @property
    def size(self) -> int:
        """Length of an embedding."""

    def embed(self, images: "Sequence[Image]") -> "Tensor | Vectors":
        """Embed upright RGB images: ``[N, size]``, not normalized."""
