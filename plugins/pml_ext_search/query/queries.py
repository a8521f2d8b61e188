"""Queries of images, ids and vectors, searched in the index or in a store."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pml_ext.errors import ConfigError, DataError
from pml_ext_train.data import is_vector_file

from ..embedding.embedding import SEVERAL, ImageEmbedder
from ..embedding.reading import Images, as_images
from ..embedding.vectors import VectorEmbedder
from .gallery import Gallery
from .query import Answer, Answers, QueryOptions

if TYPE_CHECKING:
    from pml_ext_train.data import VectorFile


def answers_to_images(
    embedder: ImageEmbedder,
    gallery: Gallery,
    queries: Images,
    options: QueryOptions,
    of_store: Callable[[], Answers] | None,
) -> list[Answer]:
    """Answers to images; ``of_store`` opens a store to search instead of the index."""
    images = list(as_images(queries))  # a generator can be iterated only once
    names = [os.fspath(image) if isinstance(image, (str, os.PathLike)) else "" for image in images]
    if of_store is not None:
        return of_store()(names, embedder.embed(images))
    # Embeddings of several new images are written, so they are computed before the reading transaction begins.
    # Embeddings of few images are not written; one transaction looks them up and searches.
    points = None
    if len(images) >= SEVERAL:
        points = embedder.embed(images)
    with gallery.reading() as current:
        if points is None:
            points = embedder.embed(images, SEVERAL, current)
        return gallery.answer_within(current, names, points, options)


def answers_to_vectors(
    embedder: VectorEmbedder,
    gallery: Gallery,
    queries: Any,
    options: QueryOptions,
    of_store: Callable[[], Answers] | None,
) -> list[Answer]:
    """Answers to ids of the index, a file of vectors, or an array of vectors."""
    texts = _texts_of(queries)
    files = [text for text in texts or [] if is_vector_file(text) and os.path.isfile(text)]
    if files and texts != files[:1]:
        raise ConfigError(f"{files[0]} and more: wanted ids, or one file of vectors; name one file")
    if texts is None:
        points = embedder.embed(queries)
        names = [""] * len(points)
        shown = [f"vector {number}" for number in range(len(points))]
    elif files:
        file = embedder.read(Path(files[0]))
        points = embedder.embed(file.embeddings, file.ids)
        names = names_in_index(gallery, file)
        shown = file.ids.tolist()
    else:  # ids
        with gallery.reading() as current:
            points = gallery.points_of(current, texts)
            if of_store is None:
                return gallery.answer_within(current, texts, points, options)
        return of_store()(texts, points)
    if of_store is None:
        answers = gallery.answer(names, points, options)
    else:
        answers = of_store()(names, points)
    return [dataclasses.replace(answer, query=name) for answer, name in zip(answers, shown, strict=True)]


def names_in_index(gallery: Gallery, file: VectorFile) -> list[str]:
    """The ids of a file's vectors if it is the indexed file, else empty strings."""
    with contextlib.suppress(DataError), gallery.reading():  # a store may be searched without a local index
        if gallery.folder == file.path.resolve():
            return file.ids.tolist()  # type: ignore[no-any-return]
    return [""] * len(file.ids)


def _texts_of(queries: Any) -> list[str] | None:
    if isinstance(queries, (str, os.PathLike)):
        queries = [queries]
    if not isinstance(queries, (list, tuple)):
        return None
    if not all(isinstance(query, (str, os.PathLike)) for query in queries):
        return None
    return [os.fspath(query) for query in queries]
