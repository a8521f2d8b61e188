"""Warnings and errors of collections."""

from __future__ import annotations

from pml_ext.errors import DataError
from pml_ext_train.retrieval import RetrievalWarning as RetrievalWarning


class StoreWarning(UserWarning):
    """A collection is damaged or cannot be written; its missing images are embedded again."""


class DamagedCollectionError(DataError):
    """A file of a collection is damaged; the message has its path and the command to rebuild it."""
