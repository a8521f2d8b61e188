"""Queries by texts: compared with the features of images as a pair of encoders gives them, before any head."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from pml_ext.errors import DataError
from pml_ext_train.networks import text_encoder

from .query import Answer, QueryOptions

if TYPE_CHECKING:
    from .gallery import Gallery
    from .indexed_run import IndexedRun


def answers_to_texts(run: IndexedRun, texts: Sequence[str], options: QueryOptions) -> list[Answer]:
    """Return the indexed images nearest to each text, in the space that the encoders of a pair share.

    Distances are those of features of length 1. They are larger than between images, since texts lie apart from images
    in the space of a pair; a radius for images does not fit. ConfigError for a run without such a trunk.
    """
    run.check_images()
    encoder = text_encoder(run.recipe.model.trunk.model_dump(), run.trunk, run.device)
    points = nn.functional.normalize(encoder(texts).float())
    answers = features_gallery(run).answer([""] * len(texts), points, options)
    return [dataclasses.replace(answer, query=text) for answer, text in zip(answers, texts, strict=True)]


def features_gallery(run: IndexedRun) -> Gallery:
    """Return an index of the features of the images that a run has indexed.

    It is the run's own where images are compared by features. Else it is a second collection beside it, which is made
    of kept features when a text is first looked for, and follows the run's index. DataError without an index.
    """
    if run.by == "features" or run.recipe.model.embedder == "none":
        return run.gallery()
    indexed = run.indexed_images()
    beside = type(run)(
        run.folder,
        str(run.device),
        workers=None,
        store=run.place.with_name(f"{run.place.name}-features"),
        listener=run.images.listener,
        by="features",
    )
    beside.images.replace = True  # the collection of an earlier state of the run
    try:
        known = beside.indexed_images()
    except DataError:
        known = None
    is_same = known is not None and known.folder == indexed.folder and known.paths == indexed.paths
    if not is_same or known is None or not np.array_equal(known.stats, indexed.stats):
        return beside.index(indexed.folder)
    return beside.gallery()
