"""The hooks that a plugin may implement. A plugin is a module named by an entry point of group ``pml_ext``.

.. code-block:: toml

    [project.entry-points.pml_ext]
    mine = "my_package"

A hook is a function of ``my_package`` with one of these names, marked with :data:`pml_ext.plugin.hookimpl`; a marked
function of another name is an error. All hooks are optional.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Callable, Mapping, Sequence
from importlib.resources.abc import Traversable
from typing import Any

import pluggy

from .components import Command, Component

hookspec = pluggy.HookspecMarker("pml_ext")
hookimpl = pluggy.HookimplMarker("pml_ext")


def packaged(module: str) -> tuple[Callable[[], list[Traversable]], Callable[[], dict[str, Traversable]]]:
    """Return the hooks ``pml_ext_recipes`` and ``pml_ext_papers`` of a package with folders ``recipes``, ``papers``."""
    files = importlib.resources.files(module)

    @hookimpl
    def recipes() -> list[Traversable]:
        return [files / "recipes"]

    @hookimpl
    def papers() -> dict[str, Traversable]:
        found = {}
        for file in (files / "papers").iterdir():
            if file.name.endswith(".toml"):
                found[file.name.removesuffix(".toml")] = file
        return found

    return recipes, papers


@hookspec
def pml_ext_components() -> Sequence[Component]:  # type: ignore[empty-body]
    """Return classes to register, as components; names are kebab-case and unique per kind."""


@hookspec
def pml_ext_recipes() -> Sequence[Traversable]:  # type: ignore[empty-body]
    """Return folders of the package; a file ``sub/name.toml`` in one becomes the recipe ``ENTRY-POINT/sub/name``."""


@hookspec
def pml_ext_papers() -> Mapping[str, Traversable]:  # type: ignore[empty-body]
    """Return files with tables of papers, by name; a recipe refers to one by ``[paper] table = "mine/2"``."""


@hookspec
def pml_ext_datasets() -> Mapping[str, Callable[..., Any]]:  # type: ignore[empty-body]
    """Return factories of data sets by name; called when a data set is first looked up.

    For a recipe's ``[data]`` table, ``factory(root, **options)`` returns a :class:`pml_ext.plugin.DataSplits` or raises
    :class:`pml_ext.errors.DataError`. ``root`` is the :class:`pathlib.Path` of ``--data`` or None. ``options`` are the
    keys of the table that are parameters of the factory.
    """


@hookspec
def pml_ext_trunks() -> Mapping[str, Callable[..., Any]]:  # type: ignore[empty-body]
    """Return factories of networks from images ``[B, C, H, W]`` to features ``[B, F]``, by name.

    ``factory(in_channels, image_size, **options)`` gets its options from the table ``[model.trunk]``.
    """


@hookspec
def pml_ext_transforms() -> Mapping[str, Callable[..., Any]]:  # type: ignore[empty-body]
    """Return factories of transforms of training images by name, for ``transforms`` of ``[data.augment]``.

    ``factory(**options)`` returns a function from an image, uint8 ``[C, H, W]``, to one of the same type and shape. It
    draws random numbers from torch's generator alone, and can be pickled. ``options`` are the settings in the recipe.
    """


@hookspec
def pml_ext_metrics() -> Mapping[str, Callable[..., Any]]:  # type: ignore[empty-body]
    """Return metrics by name (``snake_case``), in the form of PML's ``calculate_NAME``.

    ``function(**kwargs)`` returns a number. It gets the arguments of PML's methods: ``query_labels`` ``[Q]``,
    ``knn_labels`` and ``knn_distances`` ``[Q, K]`` (nearest first; in a run K is the size of the largest class),
    ``not_lone_query_mask``, ``label_counts``, ``query``, ``reference``; ``cluster_labels`` ``[Q]`` if a parameter.
    """


@hookspec
def pml_ext_trackers() -> Mapping[str, Callable[..., Any]]:  # type: ignore[empty-body]
    """Return factories of :class:`pml_ext.plugin.Tracker` by name, for a recipe's ``[track]`` and ``--track``.

    Rank 0 calls ``factory(folder, recipe, **options)`` when a run starts and again when it is resumed. ``recipe`` has
    the settings by dotted key. ``options`` are the keys of the table that are parameters of the factory. The parameters
    ``iteration`` and ``epoch``, if it has them, get those of the checkpoint that the run resumes from.
    """


@hookspec
def pml_ext_stores() -> Mapping[str, Callable[..., Any]]:  # type: ignore[empty-body]
    """Return factories of :class:`pml_ext.plugin.Store` by scheme, for ``--to SCHEME:ADDRESS`` and ``--store``.

    ``factory(address, table, size)`` gets the text after the colon, the name of a table for one state of a network,
    and the embedding size.
    """


@hookspec
def pml_ext_services() -> Mapping[str, Callable[..., Any]]:  # type: ignore[empty-body]
    """Return what a tool does for other tools, by name: functions without arguments that return an object.

    A tool imports no other; ``pml_ext.tool.service("stores", "--to STORE")`` calls the function of the service
    ``stores``. The methods of a service are written in :mod:`pml_ext.retrieval`.
    """


@hookspec
def pml_ext_checks() -> Mapping[str, Callable[..., Any]]:  # type: ignore[empty-body]
    """Return the conformance checks of kinds that this tool uses, by kind: ``{"store": check_store}``.

    ``pml-ext check`` calls ``check_store(named)`` with a :class:`pml_ext.tool.Named`, the name and the factory of a
    plugin. It returns a line about what was tried, raises AssertionError with a finding, and
    :class:`pml_ext.tool.SkipCheck` with the reason why it cannot try.
    """


@hookspec
def pml_ext_commands() -> Mapping[str, Command]:  # type: ignore[empty-body]
    """Return commands of ``pml-ext`` by name (kebab-case).

    ``Command("my_package.commands:my_command", "One line for --help.")`` names a function with typer's annotations. Its
    module is imported when the command is called, so that ``pml-ext --help`` stays fast. The function imports torch
    when it runs.
    """
