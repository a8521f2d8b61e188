"""Queries by texts, compared with features of images, before any head."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from pml_ext.errors import DataError
from pml_ext_train.networks import text_encoder
from pml_ext_train.results import LoadedRun

from .query import Answer, QueryOptions
from .search_index import SearchIndex, index_of

if TYPE_CHECKING:
    from .gallery import Gallery


def answers_to_texts(
    run: LoadedRun, search_index: SearchIndex, texts: Sequence[str], options: QueryOptions
) -> list[Answer]:
    """The indexed images nearest to each text, in the space that a pair of encoders shares.

    Texts are farther from images than images from each other, so a radius for images does not fit.
    """
    _ = search_index.images  # refuses an index of vectors
    encoder = text_encoder(run.recipe.model.trunk.model_dump(), run.network.trunk, run.device)
    points = nn.functional.normalize(encoder(texts).float())
    answers = features_gallery(run, search_index).answer([""] * len(texts), points, options)
    return [dataclasses.replace(answer, query=text) for answer, text in zip(answers, texts, strict=True)]


def features_gallery(run: LoadedRun, search_index: SearchIndex) -> Gallery:
    """An index of the features of a run's indexed images; DataError without an index.

    Unless it is the run's own, it is a second collection beside it, made for the first text and updated with the index.
    """
    collection = search_index.collection
    if collection.by == "features" or (run.recipe.model.embedder == "none" and collection.cut is None):
        return search_index.gallery()
    indexed = search_index.indexed_images()
    place = search_index.place
    store = place.with_name(f"{place.name}-features")
    beside = index_of(run, store, listener=search_index.images.listener, by="features")
    beside.images.replace = True  # replaces a collection of an earlier state of the run
    with contextlib.suppress(DataError):
        known = beside.indexed_images()
        is_same = known.folder == indexed.folder and known.paths == indexed.paths
        if is_same and np.array_equal(known.stats, indexed.stats):
            return beside.gallery()
    return beside.index(indexed.folder, retry_damaged=False)
