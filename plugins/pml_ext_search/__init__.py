"""Search with a trained network: embed, index, query, identify and cluster images."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import lazy_loader

from pml_ext.plugin import Command, hookimpl

if TYPE_CHECKING:
    from pml_ext_train.retrieval import SearchService

    from .collection.problems import RetrievalWarning as RetrievalWarning, StoreWarning as StoreWarning
    from .embedding.embedding import SkippedImage as SkippedImage
    from .query.query import Answer as Answer, QueryOptions as QueryOptions
    from .query.search_index import SearchIndex as SearchIndex, open_index as open_index
    from .select.selection import (
        most_distinct as most_distinct,
        nearest_to_centers as nearest_to_centers,
        outliers as outliers,
    )
    from .select.suspicious_labels import suspicious_labels as suspicious_labels
    from .trained import TrainedRun as TrainedRun, load_run as load_run

__getattr__, _, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "embedding.embedding": ["SkippedImage"],
        "collection.problems": ["RetrievalWarning", "StoreWarning"],
        "query.query": ["Answer", "QueryOptions"],
        "query.search_index": ["SearchIndex", "open_index"],
        "select.selection": ["most_distinct", "nearest_to_centers", "outliers"],
        "select.suspicious_labels": ["suspicious_labels"],
        "trained": ["TrainedRun", "load_run"],
    },
)


@hookimpl
def pml_ext_commands() -> dict[str, Command]:
    """The commands that embed, search, identify and cluster images."""
    return {
        "embed": Command("pml_ext_search.commands.embed:embed", "Embed the images of a folder into a file."),
        "index": Command("pml_ext_search.commands.index:index", "Index the images of a folder, or update the index."),
        "query": Command("pml_ext_search.commands.query:query", "Find the nearest images of an image."),
        "identify": Command(
            "pml_ext_search.commands.identify:identify", "Tell which class a photograph shows, or new."
        ),
        "enroll": Command("pml_ext_search.commands.enroll:enroll", "Add photographs of an individual to the index."),
        "cluster": Command(
            "pml_ext_search.commands.cluster:cluster", "Cluster a folder's images into a CSV table and contact sheets."
        ),
        "labels": Command("pml_ext_search.commands.labels:labels", "List images that look like another class."),
        "select": Command(
            "pml_ext_search.commands.select:select", "Select images that represent a folder, or are rare in it."
        ),
    }


@hookimpl
def pml_ext_datasets() -> dict[str, Callable[..., Any]]:
    """The data set of images without labels."""
    from .unlabeled import unlabeled

    return {"unlabeled": unlabeled}


@hookimpl
def pml_ext_services() -> dict[str, Callable[..., Any]]:
    """What loads a run for other tools."""
    return {"search": _search}


def _search() -> SearchService:
    from . import trained

    return trained
