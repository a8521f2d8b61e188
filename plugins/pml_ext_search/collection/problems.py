"""Warnings and errors of collections."""

from pml_ext.errors import DataError
from pml_ext_train.retrieval import RetrievalWarning as RetrievalWarning


class StoreWarning(UserWarning):
    """A collection is damaged or cannot be written; missing images are embedded again."""


class DamagedCollectionError(DataError):
    """A damaged file of a collection; the message has the command to rebuild it."""


class ExcludedImages(UserWarning):
    """Patterns leave out images of a folder; the text says how many."""
