"""What a component is: a class under a name, of a kind, with capabilities and settings.

Importing this module imports neither torch nor PML; the first question about a class does.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable

from .catalogue import capabilities_of

KINDS = ("loss", "miner", "regularizer", "distance", "sampler", "reducer")
CAPABILITIES = frozenset({"labels", "indices_tuple", "references", "state", "tiles"})


@dataclasses.dataclass(frozen=True)
class Paper:
    """Where a method comes from.

    Args:
        title: the paper's title.
        authors: its authors, for example ``"Musgrave et al."``.
        year: the year it appeared.
        url: where to read it.
    """

    title: str
    authors: str
    year: int
    url: str

    def __str__(self) -> str:
        return f"{self.authors} ({self.year}). {self.title}. {self.url}"


@dataclasses.dataclass(frozen=True)
class Component:
    """A class under a name. Its kind follows from the PML base class that it extends.

    Args:
        cls: the class.
        name: kebab-case, unique per kind, for example ``"my-loss"``.
        paper: where the method comes from.
        plugin: the entry point that registered it; the registry fills it in.
    """

    cls: type
    name: str
    paper: Paper | None = None
    plugin: str = ""

    @property
    def kind(self) -> str:
        """One of :data:`KINDS`."""
        return kind_of(self.cls)

    @property
    def qualified_name(self) -> str:
        """``plugin:name``, which reaches the component whatever other plugins claim."""
        return f"{self.plugin}:{self.name}"

    @property
    def summary(self) -> str:
        """The first line of the class's own docstring, or nothing."""
        return (inspect.cleandoc(self.cls.__doc__).splitlines() or [""])[0] if self.cls.__doc__ else ""

    @property
    def capabilities(self) -> frozenset[str]:
        """What the class can do: see :func:`capabilities`."""
        return capabilities(self.cls)

    @property
    def settings(self) -> dict[str, inspect.Parameter]:
        """The keyword arguments that the constructor accepts, those handed on to base classes included."""
        return settings_of(self.cls)


def kind_of(cls: type) -> str:
    """The kind of a class, by the PML (or ``pml_ext``, or torch) base class that it extends.

    Raises:
        TypeError: it extends none of them.
    """
    from . import pml

    for kind, bases in pml.BASES.items():
        if issubclass(cls, bases):
            return kind
    wanted = "; ".join(f"a {kind}: {bases[0].__module__}.{bases[0].__name__}" for kind, bases in pml.BASES.items())
    raise TypeError(f"{cls.__module__}.{cls.__qualname__} extends none of the base classes of components ({wanted})")


def capabilities(component: object) -> frozenset[str]:
    """What a class or instance can do.

    Args:
        component: a class or an instance of one.

    Returns:
        Some of ``"labels"`` (uses them), ``"indices_tuple"`` (takes a miner's), ``"references"`` (takes ``ref_emb`` and
        ``ref_labels``), ``"state"`` (keeps some between calls), ``"tiles"`` (works in tiles of bounded memory). From
        its attribute ``capabilities``; for PML's classes from a table; labels and indices_tuple if neither says.
    """
    declared = getattr(component, "capabilities", None)
    if declared is not None:
        return frozenset(declared)
    return capabilities_of(component if isinstance(component, type) else type(component))


# What PML's base classes require and its losses pass to them by themselves.
_PASSED_BY_SUBCLASSES = frozenset({"mat_based_loss"})


def settings_of(target: Callable[..., object]) -> dict[str, inspect.Parameter]:
    """The keyword arguments that a class or a function accepts.

    A class that hands ``**kwargs`` to its base classes accepts their arguments too, nearest class first.
    """
    if not isinstance(target, type):
        return {p.name: p for p in _parameters(target) if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    signature: dict[str, inspect.Parameter] = {}
    for base in target.__mro__:
        if "__init__" not in vars(base) or base.__module__.startswith("torch."):
            continue
        parameters = _parameters(vars(base)["__init__"])[1:]
        named = (p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
        signature = {p.name: p for p in named if p.name not in _PASSED_BY_SUBCLASSES} | signature
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return signature


def _parameters(function: Callable[..., object]) -> list[inspect.Parameter]:
    """The parameters, annotations as types where the module's names allow that."""
    signature = list(inspect.signature(function).parameters.values())
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    names = getattr(inspect.unwrap(inner), "__globals__", {})
    return [p.replace(annotation=_resolved(p.annotation, names)) for p in signature]


def _resolved(annotation: object, names: dict[str, object]) -> object:
    """What a text stands for in a module; the text itself where it does not (a name for type checkers alone, say)."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, names)
    except Exception:  # an annotation can be any expression
        return annotation
