"""Components: named classes, with their kinds, capabilities and settings; PML's own classes are ``pml/...``."""

from __future__ import annotations

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
    """The paper that introduced a method; ``authors`` is text such as ``"Musgrave et al."``."""

    title: str
    authors: str
    year: int
    url: str

    def __str__(self) -> str:
        return f"{self.authors} ({self.year}). {self.title}. {self.url}"


@dataclasses.dataclass(frozen=True)
class Component:
    """A class registered under a name; its PML base class determines its kind.

    A class given as text, with a summary, is listed without importing torch.
    """

    source: type | str  # the class, or "package.module:Class", imported on first use
    name: str  # kebab-case, unique per kind
    paper: Paper | None = None  # source of the method
    plugin: str = ""  # the entry point that registered it; the registry fills it in
    named_kind: str = ""  # kind of a class given as text, if its name's suffix does not give it
    summary: str = ""  # one line for ``pml-ext list``; by default the first line of the class's docstring

    @property
    def cls(self) -> type:
        """The class; PluginError, with the plugin's name, if text names none that can be imported."""
        if isinstance(self.source, type):
            return self.source
        owner = f"the component {self.name!r} of the plugin {self.plugin!r}"
        found: type = import_name(self.source, owner, self.plugin, "pml_ext_components", "class")
        try:
            kind = kind_of(found)
        except TypeError as error:
            raise PluginError(f"{owner}: {error}") from None
        named = self._kind_in_text
        if named not in ("", kind):
            advice = f'write Component(..., named_kind="{kind}")'
            raise PluginError(f"{owner}: {self.source!r} is a {kind}, registered as a {named}; {advice}")
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
        """One of :data:`KINDS`; for a class given as text, from its name's suffix (``MyLoss``: ``"loss"``)."""
        if isinstance(self.source, type):
            return kind_of(self.source)
        return self._kind_in_text or kind_of(self.cls)

    @property
    def _kind_in_text(self) -> str:
        """The kind of a class given as text, as far as the text tells it; "" otherwise."""
        return self.named_kind or next((kind for kind in KINDS if self.class_name.endswith(kind.capitalize())), "")

    @property
    def one_line(self) -> str:
        """The summary, or the first line of the class's docstring, which imports the class; "" for PML's classes."""
        if self.summary or self.plugin == PML:
            return self.summary
        return (self.cls.__doc__ or "").strip().partition("\n")[0]

    @property
    def qualified_name(self) -> str:
        """``plugin:name``, which is unambiguous even if other plugins use the same name."""
        return f"{self.plugin}:{self.name}"

    @property
    def settings(self) -> dict[str, inspect.Parameter]:
        """The class's :func:`pml_ext.settings.settings_of`."""
        return settings_of(self.cls)


@dataclasses.dataclass(frozen=True)
class Command:
    """A command of ``pml-ext``: a function with typer's annotations, imported when the command is called."""

    function: str  # "package.module:function"
    summary: str  # one line for ``pml-ext --help``

    def load(self, name: str = "", plugin: str = "") -> Callable[..., None]:
        """Import the function; PluginError, with the command's name and its plugin's, if that fails."""
        owner = f"the command {name!r} of the plugin {plugin!r}"
        found: Callable[..., None] = import_name(self.function, owner, plugin, "pml_ext_commands", "function")
        return found


def package_of(path: str) -> str:
    """Return the top package of a module, or of an import path ``"package.module:name"``."""
    return path.partition(":")[0].partition(".")[0]


def import_name(source: str, owner: str, plugin: str, hook: str, wanted: str) -> Any:
    """Import ``"package.module:name"`` of a plugin, a ``"class"`` or ``"function"``; what it prints goes to stderr.

    ``owner`` is what the name is of, such as ``"the loss 'mine' of the plugin 'theirs'"``. PluginError if the import
    fails, with the hook that named it, and the line.
    """
    is_imported = source.partition(":")[0] in sys.modules  # then nothing is executed
    try:
        with contextlib.nullcontext() if is_imported else contextlib.redirect_stdout(sys.stderr):
            found = pkgutil.resolve_name(source)
    except (PmlExtError, PluginWarning, KeyboardInterrupt, StoppedError):
        raise
    except BaseException as error:  # a plugin's module may raise anything, SystemExit too
        problem = f"{owner} cannot be imported: {reason_of(error, package_of(source))}"
        remedy = f"{hook} names {source!r} (PML_EXT_BLOCK={plugin} leaves the plugin out)"
        raise PluginError(f"{problem}; {remedy}") from error
    if not (isinstance(found, type) if wanted == "class" else callable(found)):
        raise PluginError(f'{owner}: {source!r} is {found!r}, wanted a {wanted}, "package.module:name"')
    return found


def reason_of(error: BaseException, package: str) -> str:
    """Return an error as one line, with the line of a package's code that raised it or called what did."""
    place = place_in(package, error)
    return f"{one_line(error)}, in {place}" if place else one_line(error)


def place_in(package: str, error: BaseException) -> str:
    """Return the file and the line of a package's code that raised an error, or called what did; "" if none did."""
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if package_of(str(frame.f_globals.get("__name__", ""))) == package:
            file = Path(frame.f_code.co_filename)
            place = f"{file.parent.name}/{file.name}:{line}"
    return place


def kind_of(cls: type) -> str:
    """Return the kind of a class from its PML or torch base class; raise TypeError without such a base."""
    from .. import pml

    for kind, bases in pml.BASES.items():
        if issubclass(cls, bases):
            return kind
    wanted = "; ".join(f"a {kind}: {base.__module__}.{base.__name__}" for kind, (base, *_) in pml.BASES.items())
    raise TypeError(f"{cls.__module__}.{cls.__qualname__} extends none of the base classes of components ({wanted})")


def capabilities(component: object) -> frozenset[str]:
    """Return the capabilities of a class or instance: its attribute ``capabilities``, or those of its PML base.

    ``"labels"``: uses labels; ``"indices_tuple"``: takes a miner's pairs; ``"references"``: takes ``ref_emb`` and
    ``ref_labels``; ``"relation"``: supports a relation instead of equal labels; ``"state"``: keeps state between
    calls; ``"tiles"``: computes in tiles of bounded memory. The default is labels and indices_tuple.
    """
    from .. import pml

    declared = getattr(component, "capabilities", None)
    if declared is not None:
        return frozenset(declared)
    return pml.capabilities_of(component if isinstance(component, type) else type(component))


def kebab(class_name: str) -> str:
    """Return the default name of a class: ``"multi-similarity"`` for ``"MultiSimilarityLoss"``."""
    stem = re.sub(r"(Loss|Miner|Regularizer|Distance|Sampler|Reducer)$", "", class_name)
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", stem).lower()
    for words in ("arc-face", "cos-face", "sphere-face", "nt-xent", "vic-reg", "sup-con", "p2-s"):
        name = name.replace(words, words.replace("-", ""))
    return name
