"""Components: named classes, with their kinds, capabilities and settings; PML's own classes are ``pml/...``."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable

from ..errors import PluginError
from ..settings import settings_of as settings_of
from .imports import import_name

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
        found = import_name(self.source, f"the component {self.name!r}", self.plugin, "pml_ext_components")
        if not isinstance(found, type):
            raise PluginError(
                f"the component {self.name!r} of the plugin {self.plugin!r}: {self.source!r} is {found!r}, wanted a "
                'class, "package.module:Class"'
            )
        if self.plugin != PML:
            self._check_kind(found)
        return found

    def _check_kind(self, found: type) -> None:
        """Raise PluginError for a class without a base class of components, or of another kind than the text says."""
        try:
            kind = kind_of(found)
        except TypeError as error:
            raise PluginError(f"the component {self.name!r} of the plugin {self.plugin!r}: {error}") from None
        named = self._kind_in_text
        if named and kind != named:
            advice = f'write Component(..., named_kind="{kind}")'
            raise PluginError(
                f"the component {self.name!r} of the plugin {self.plugin!r}: {self.source!r} is a {kind}, "
                f"registered as a {named}; {advice}"
            )

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
        if self.named_kind:
            return self.named_kind
        for kind in KINDS:
            if self.class_name.endswith(kind.capitalize()):
                return kind
        return ""

    @property
    def one_line(self) -> str:
        """The summary, or the first line of the class's docstring, which imports the class; "" for PML's classes."""
        if self.summary or self.plugin == PML:
            return self.summary
        documented = self.cls.__doc__
        if not isinstance(documented, str):
            return ""
        return documented.strip().partition("\n")[0]

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
        found = import_name(self.function, f"the command {name!r}", plugin, "pml_ext_commands")
        if not callable(found):
            text = f"the command {name!r} of the plugin {plugin!r}: {self.function!r} is {found!r}, wanted a function"
            raise PluginError(text)
        return found  # type: ignore[no-any-return]


def kind_of(cls: type) -> str:
    """Return the kind of a class from its PML or torch base class; raise TypeError without such a base."""
    from .. import pml

    for kind, bases in pml.BASES.items():
        if issubclass(cls, bases):
            return kind
    texts = []
    for kind, bases in pml.BASES.items():
        base = bases[0]
        texts.append(f"a {kind}: {base.__module__}.{base.__name__}")
    wanted = "; ".join(texts)
    raise TypeError(f"{cls.__module__}.{cls.__qualname__} extends none of the base classes of components ({wanted})")


def capabilities(component: object) -> frozenset[str]:
    """Return the capabilities of a class or instance: its attribute ``capabilities``, or those of its PML base.

    ``"labels"``: uses labels; ``"indices_tuple"``: takes a miner's pairs; ``"references"``: takes ``ref_emb`` and
    ``ref_labels``; ``"relation"``: supports a relation instead of equal labels; ``"state"``: keeps state between
    calls; ``"tiles"``: computes in tiles of bounded memory. The default is labels and indices_tuple.
    """
    declared = getattr(component, "capabilities", None)
    if declared is not None:
        return frozenset(declared)
    if isinstance(component, type):
        cls = component
    else:
        cls = type(component)
    from .. import pml

    return pml.capabilities_of(cls)


def kebab(class_name: str) -> str:
    """Return the default name of a class: ``"multi-similarity"`` for ``"MultiSimilarityLoss"``."""
    stem = re.sub(r"(Loss|Miner|Regularizer|Distance|Sampler|Reducer)$", "", class_name)
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", stem).lower()
    for words in ("arc-face", "cos-face", "sphere-face", "nt-xent", "vic-reg", "sup-con", "p2-s"):
        name = name.replace(words, words.replace("-", ""))
    return name
