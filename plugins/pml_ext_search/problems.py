"""Warnings and errors of collections."""

from __future__ import annotations

from pml_ext.errors import DataError


class RetrievalWarning(UserWarning):
    """A request was met in part: fewer answers, low recall, an image that cannot be shown."""


class StoreWarning(UserWarning):
    """A collection is damaged or cannot be written; its missing images are embedded again."""


class DamagedCollectionError(DataError):
    """A file of a collection is damaged; the message has its path and the command to rebuild it."""
