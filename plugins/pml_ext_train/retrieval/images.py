"""Interfaces of embedded images and their clusters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from .stores import Numbers, Vectors

if TYPE_CHECKING:
    from torch import Tensor


class EmbeddedImages(Protocol):
    """Images of a folder, or of its index, and their embeddings."""

    @property
    def folder(self) -> Path:
        """The folder of the images."""

    @property
    def paths(self) -> Sequence[str]:
        """The path of each image, relative to the folder."""

    @property
    def classes(self) -> Sequence[str]:
        """The class of each image, or an empty string."""

    @property
    def embeddings(self) -> Tensor:
        """``[N, D]``, of length 1."""

    @property
    def ids(self) -> Numbers:
        """The id of each image, ``[N]``; empty without an index."""

    @property
    def checksums(self) -> Numbers:
        """The checksum of each image's id, path, class, size, time and embedding, ``[N]``."""


class ImageCluster(Protocol):
    """A cluster of images."""

    @property
    def number(self) -> int:
        """From 0, by decreasing size."""

    @property
    def members(self) -> Sequence[int]:
        """The indices of its images, nearest to the center first."""

    @property
    def title(self) -> str:
        """Its number, its size, and its most frequent class."""

    @property
    def shares(self) -> Sequence[tuple[str, float]]:
        """Name and fraction of the most frequent classes."""


class ImageClusters(Protocol):
    """All clusters of a set of images."""

    @property
    def method(self) -> str:
        """How they were found."""

    @property
    def numbers(self) -> Numbers:
        """The cluster of each image, ``[N]``."""

    @property
    def distances(self) -> Vectors:
        """The distance of each image to the center of its cluster, ``[N]``."""

    @property
    def clusters(self) -> Sequence[ImageCluster]:
        """The clusters, the largest first."""
