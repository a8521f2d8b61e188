"""Stores that are searched in place of the index."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from pml_ext.errors import ConfigError, DataError, printable, shortened
from pml_ext.registry import service
from pml_ext_train.files import utf8_of
from pml_ext_train.retrieval import Mirror, SearchFilter, StoresService

from ..collection.state import Image
from .query import Answer, Answers, QueryOptions, answers_of

if TYPE_CHECKING:
    from .gallery import Gallery

_ADDRESS = re.compile(r"[a-z][a-z0-9-]+:.+", re.DOTALL)  # of a store


def is_store(text: str) -> bool:
    """Whether a text is a store's address, ``SCHEME:ADDRESS``, and not a folder."""
    return bool(_ADDRESS.fullmatch(text)) and not os.path.isdir(text)


def open_store(address: str, identity: str, size: int) -> Mirror:
    """Open a network's table in a store; PluginError without the plugin ``stores``."""
    scheme = address.partition(":")[0]  # what follows may have a password
    stores: StoresService = service("stores", f"the store {shortened(scheme, 50)}:...")
    return stores.open(address, identity, size)


def answers_of_store(store: Mirror, gallery: Gallery, options: QueryOptions) -> Answers:
    """A function from names and embeddings to a store's answers."""
    known = None
    with contextlib.suppress(DataError), gallery.reading():
        known = gallery
    return functools.partial(answers_from, store, known, options=options)


def answers_from(
    store: Mirror, gallery: Gallery | None, names: Sequence[str], points: Tensor, options: QueryOptions
) -> list[Answer]:
    """A store's answers to query embeddings, without the query itself."""
    where = options.where
    if where.within is not None:
        where = where._replace(within=utf8_of(where.within))
    query_images: list[Image | None] = [None] * len(names)
    if gallery is not None:
        query_images = gallery.images_of(names)
    results = store.search(points.cpu().numpy(), options.k + 1, where)
    of_class = ""
    if where.within is not None:
        of_class = f" of the class {printable(where.within)}"
        if len(points) and not any(results):
            (any_of_class,) = store.search(points[:1].cpu().numpy(), 1, SearchFilter(where.within))
            if not any_of_class:
                raise ConfigError(f"--within {shortened(where.within, 100)}: no image of this class in the store")
    return answers_of(names, query_images, results, options, f"the store gave no more images{of_class}")
