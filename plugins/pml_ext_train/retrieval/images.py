"""Interfaces from images to embeddings, and to clusters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from .stores import Numbers, Vectors

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

    def embed(self, images: Sequence[Image]) -> Tensor | Vectors:
        """Embed upright RGB images: ``[N, size]``, not normalized."""


class EmbeddedImages(Protocol):
    """Images of a folder or index, and their embeddings."""

    @property
    def folder(self) -> Path:
        """Their folder."""

    @property
    def paths(self) -> Sequence[str]:
        """Paths relative to the folder."""

    @property
    def classes(self) -> Sequence[str]:
        """Classes, or empty strings."""

    @property
    def embeddings(self) -> Tensor:
        """``[N, D]``, of length 1."""

    @property
    def ids(self) -> Numbers:
        """Ids ``[N]``; empty without an index."""

    @property
    def checksums(self) -> Numbers:
        """Checksums ``[N]`` of id, path, class, size, time and embedding."""


class ImageCluster(Protocol):
    """A cluster of images, or the rest, which are in no group."""

    @property
    def number(self) -> int:
        """By decreasing size; -1 for the rest."""

    @property
    def is_rest(self) -> bool:
        """Whether it is the rest."""

    @property
    def members(self) -> Sequence[int]:
        """Indices of its images, nearest to the center first."""

    @property
    def title(self) -> str:
        """Number, size, and most frequent class."""

    @property
    def shares(self) -> Sequence[tuple[str, float]]:
        """Most frequent classes with their fractions."""


class ImageClusters(Protocol):
    """Clusters of images."""

    @property
    def method(self) -> str:
        """Name of the method."""

    @property
    def numbers(self) -> Numbers:
        """Cluster of each image, ``[N]``."""

    @property
    def distances(self) -> Vectors:
        """Distance of each image to its cluster's center, ``[N]``."""

    @property
    def clusters(self) -> Sequence[ImageCluster]:
        """Largest first, and the rest last."""

    @property
    def rest(self) -> int:
        """How many images are in the rest."""

    def joined(self, joins: Iterable[Sequence[int]]) -> ImageClusters:
        """The same clusters, with some joined; each keeps its smallest number."""
