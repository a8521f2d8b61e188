"""The hooks that a plugin may implement. A plugin is a module named by an entry point of group ``pml_ext``.

.. code-block:: toml

    [project.entry-points.pml_ext]
    mine = "my_package"

In ``my_package``, functions with these names, marked with :data:`pml_ext.plugin.hookimpl`, are found and called. A
function with another ``pml_ext_...`` name is an error, so that a misspelt hook is noticed. All hooks are optional.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Callable, Mapping, Sequence
from importlib.resources.abc import Traversable
from typing import Any

import pluggy

from .components import Component

hookspec = pluggy.HookspecMarker("pml_ext")
hookimpl = pluggy.HookimplMarker("pml_ext")


def packaged(module: str) -> tuple[Callable[[], list[Traversable]], Callable[[], dict[str, Traversable]]]:
    """Return the hooks ``pml_ext_recipes`` and ``pml_ext_papers`` of a package with folders of these names.

    In the package, ``pml_ext_recipes, pml_ext_papers = packaged(__name__)``; ``papers/mine.toml`` is the paper "mine".
    """
    files = importlib.resources.files(module)

    @hookimpl
    def recipes() -> list[Traversable]:
        return [files / "recipes"]

    @hookimpl
    def papers() -> dict[str, Traversable]:
        return {file.name.removesuffix(".toml"): file for file in (files / "papers").iterdir()}

    return recipes, papers


@hookspec
def pml_ext_components() -> Sequence[Component]:  # type: ignore[empty-body]
    """Classes to register: losses, miners, regularizers, distances, samplers, reducers.

    Returns:
        Components; names are kebab-case and unique per kind.
    """


@hookspec
def pml_ext_recipes() -> Sequence[Traversable]:  # type: ignore[empty-body]
    """Folders of recipe files inside the package, for example ``[importlib.resources.files(__name__) / "recipes"]``.

    Returns:
        Folders; a file ``sub/name.toml`` in one becomes the recipe ``ENTRY-POINT/sub/name``.
    """


@hookspec
def pml_ext_papers() -> Mapping[str, Traversable]:  # type: ignore[empty-body]
    """Files with the tables of papers, by name.

    Returns:
        ``{name: file}``: ``{"mine": importlib.resources.files(__name__) / "papers" / "mine.toml"}``. A recipe that
        says ``[paper] table = "mine/2", row = "Ours"`` quotes from it; docs/recipes.md describes such a file.
    """


@hookspec
def pml_ext_datasets() -> Mapping[str, Callable[..., Any]]:  # type: ignore[empty-body]
    """Data sets by name.

    Returns:
        ``{name: factory}``. A recipe's ``[data]`` table calls ``factory(root, **options)``: ``root`` is the folder
        given by ``--data`` (a :class:`pathlib.Path`) or None, ``options`` are the table's keys that the factory's
        signature names. It returns a :class:`pml_ext.plugin.DataSplits`. Missing or unreadable files raise
        :class:`pml_ext.errors.DataError`. The hook is called when a data set is first looked up, so it may import
        torchvision.
    """


@hookspec
def pml_ext_trunks() -> Mapping[str, Callable[..., Any]]:  # type: ignore[empty-body]
    """Networks from images to features, by name.

    Returns:
        ``{name: factory}``. A recipe's ``[model.trunk]`` table calls ``factory(in_channels, image_size, **options)``
        and gets a :class:`torch.nn.Module` that maps images ``[B, C, H, W]`` to features ``[B, F]``; ``options`` are
        the table's keys that the factory's signature names.
    """


@hookspec
def pml_ext_metrics() -> Mapping[str, Callable[..., Any]]:  # type: ignore[empty-body]
    """Metrics of retrieval or clustering, by name, in the form of PML's ``calculate_NAME``.

    Returns:
        ``{name: function}``; names are ``snake_case``. ``function(**kwargs)`` returns a number and is called with what
        PML's :class:`AccuracyCalculator` gives its methods: ``query_labels`` ``[Q]``, ``knn_labels`` and
        ``knn_distances`` ``[Q, K]`` (nearest first; in a run K is the size of the largest class),
        ``not_lone_query_mask``, ``label_counts``, ``query``, ``reference``, and ``cluster_labels`` ``[Q]`` where the
        signature names it. Every run and every :class:`pml_ext.RetrievalAccuracyCalculator` computes them.
    """


@hookspec
def pml_ext_benchmark_peers() -> Mapping[str, Mapping[str, Callable[..., Any]]]:  # type: ignore[empty-body]
    """Functions that ``pml-ext bench`` measures a loss of this plugin against.

    Returns:
        ``{loss name: {label: factory}}``; ``factory()`` returns a callable ``(embeddings, labels) -> loss``: the loss
        that a user would pick instead, or a straightforward form of the same equation. A factory that requires
        ``embedding_size`` or ``num_classes`` gets them by name.
    """
