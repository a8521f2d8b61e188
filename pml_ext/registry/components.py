"""Components: named classes with a kind, capabilities and settings."""

import contextlib
import dataclasses
import inspect
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import PluginError, PluginWarning, PmlExtError, StoppedError, one_line
from ..settings import settings_of

KINDS = ("loss", "miner", "regularizer", "distance", "sampler", "reducer")
PML = "pytorch-metric-learning"  # the plugin name of PML's own classes
CAPABILITIES = frozenset({"labels", "indices_tuple", "references", "relation", "state", "tiles"})


@dataclasses.dataclass(frozen=True)
class Paper:
    """The paper that introduced a method."""

    title: str
    authors: str  # as in "Musgrave et al."
    year: int
    url: str

    def __str__(self) -> str:
        return f"{self.authors} ({self.year}). {self.title}. {self.url}"


@dataclasses.dataclass(frozen=True)
class Component:
    """A class and its name; one given as text is listed without importing torch."""

    source: type | str  # the class, or "package.module:Class", imported on first use
    name: str  # kebab-case, unique per kind
    paper: Paper | None = None  # source of the method
    plugin: str = ""  # its entry point; the registry fills it in
    named_kind: str = ""  # kind of a class given as text, unless its name ends with it
    summary: str = ""  # one line for ``pml-ext list``; by default the first line of the class's docstring

    @property
    def cls(self) -> type:
        """The class; PluginError if it cannot be imported or has another kind."""
        if isinstance(self.source, type):
            return self.source
        owner = f"the component {self.name!r} of the plugin {self.plugin!r}"
        found: type = import_name(self.source, owner, self.plugin, "pml_ext_components", "class")
        try:
            kind = kind_of(found)
        except TypeError as error:
            raise PluginError(f"{owner}: {error}") from None
        if self._kind_in_text not in ("", kind):
            raise PluginError(
                f"{owner}: {self.source!r} is a {kind}, registered as a {self._kind_in_text}; "
                f'write Component(..., named_kind="{kind}")'
            )
        return found

    @property
    def class_name(self) -> str:
        """The class's name, without importing it."""
        return self.path.rpartition(":")[2]

    @property
    def path(self) -> str:
        """The class's import path, ``"package.module:Class"``."""
        if isinstance(self.source, str):
            return self.source
        return f"{self.source.__module__}:{self.source.__name__}"

    @property
    def kind(self) -> str:
        """One of :data:`KINDS`, by the base class or the suffix of the name (``MyLoss``)."""
        if isinstance(self.source, type):
            return kind_of(self.source)
        return self._kind_in_text or kind_of(self.cls)

    @property
    def _kind_in_text(self) -> str:
        return self.named_kind or next((kind for kind in KINDS if self.class_name.endswith(kind.capitalize())), "")

    @property
    def one_line(self) -> str:
        """The summary, or the first line of the class's docstring; empty for PML's classes."""
        if self.summary or self.plugin == PML:
            return self.summary
        return (self.cls.__doc__ or "").strip().partition("\n")[0]

    @property
    def qualified_name(self) -> str:
        """``plugin:name``, which is always unambiguous."""
        return f"{self.plugin}:{self.name}"

    @property
    def settings(self) -> dict[str, inspect.Parameter]:
        """The class's settings by name."""
        return settings_of(self.cls)


@dataclasses.dataclass(frozen=True)
class Command:
    """A command of ``pml-ext``: a function with typer's annotations, imported when called."""

    function: str  # "package.module:function"
    summary: str  # one line for ``pml-ext --help``

    def load(self, name: str = "", plugin: str = "") -> Callable[..., None]:
        """Import the function; PluginError with both names if that fails."""
        owner = f"the command {name!r} of the plugin {plugin!r}"
        return import_name(self.function, owner, plugin, "pml_ext_commands", "function")  # type: ignore[no-any-return]


def package_of(path: str) -> str:
    """The top package of a module or an import path."""
    return path.partition(":")[0].partition(".")[0]


def import_name(source: str, owner: str, plugin: str, hook: str, wanted: str) -> Any:
    """Import a plugin's ``"class"`` or ``"function"`` by its path, with output to stderr.

    ``owner`` describes it in errors, ``"the loss 'mine' of the plugin 'theirs'"``. PluginError names the hook and the
    failing line.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr):
            found = pkgutil.resolve_name(source)
    except (PmlExtError, PluginWarning, KeyboardInterrupt, StoppedError):
        raise
    except BaseException as error:  # a plugin's module may raise anything, SystemExit too
        raise PluginError(
            f"{owner} cannot be imported: {reason_of(error, package_of(source))}; "
            f"correct {source!r} in {hook}, or leave the plugin out with PML_EXT_BLOCK={plugin}"
        ) from error
    if not (isinstance(found, type) if wanted == "class" else callable(found)):
        raise PluginError(f'{owner}: {source!r} is {found!r}; expected a {wanted}, "package.module:name"')
    return found


def reason_of(error: BaseException, package: str) -> str:
    """An error as one line, with the innermost line of a package's own code."""
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if package_of(str(frame.f_globals.get("__name__", ""))) == package:
            file = Path(frame.f_code.co_filename)
            place = f", in {file.parent.name}/{file.name}:{line}"
    return one_line(error) + place


def kind_of(cls: type) -> str:
    """The kind of a class by its PML or torch base class; TypeError without one."""
    from .. import pml

    for kind, bases in pml.BASES.items():
        if issubclass(cls, bases):
            return kind
    known = "; ".join(f"a {kind}: {base.__module__}.{base.__name__}" for kind, (base, *_) in pml.BASES.items())
    raise TypeError(f"{cls.__module__}.{cls.__qualname__} has no base class of a component ({known})")


def capabilities(component: object) -> frozenset[str]:
    """The capabilities that a class or instance declares, or inherits from PML.

    - ``"labels"``: uses labels. ``"indices_tuple"``: accepts a miner's pairs. These two are the default.
    - ``"references"``: accepts ``ref_emb`` and ``ref_labels``.
    - ``"relation"``: supports a relation instead of equal labels.
    - ``"state"``: keeps state between calls. ``"tiles"``: computes in tiles of bounded memory.
    """
    from .. import pml

    return pml.capabilities_of(component)


def kebab(class_name: str) -> str:
    """A default name: ``"multi-similarity"`` for ``"MultiSimilarityLoss"``."""
    stem = re.sub(r"(Loss|Miner|Regularizer|Distance|Sampler|Reducer)$", "", class_name)
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", stem).lower()
    one_word = "arc-face|cos-face|sphere-face|nt-xent|vic-reg|sup-con|p2-s"
    return re.sub(one_word, lambda word: word[0].replace("-", ""), name)
