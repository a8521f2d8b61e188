"""What turns images into embeddings, for collections and searches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from .stores import Vectors

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor


class Embedder(Protocol):
    """Anything that turns images into vectors: a network of another library, or a few lines of NumPy."""

    @property
    def identity(self) -> str:
        """A name that changes whenever the embeddings do; a collection is only read by the embedder that filled it."""

    @property
    def size(self) -> int:
        """The length of an embedding."""

    def embed(self, images: Sequence[Image]) -> Tensor | Vectors:
        """Return the embeddings of upright RGB images, ``[N, size]``; the caller scales them to length 1."""
