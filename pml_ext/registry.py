"""Finds, describes and builds components: losses, miners, regularizers, distances, samplers and reducers.

Plugins are found by entry points of group ``pml_ext`` (see :mod:`pml_ext.hookspecs`), PML's own classes are here as
``pml/...``, and :func:`register` adds a class of the running process. Importing this module imports neither torch nor
any plugin; the first look-up does.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import inspect
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from importlib.resources.abc import Traversable
from typing import Any, TypeVar

import pluggy

from . import hookspecs
from .errors import ConfigError, PluginError, UnknownNameError

GROUP = "pml_ext"
KINDS = ("loss", "miner", "regularizer", "distance", "sampler", "reducer")
CAPABILITIES = frozenset({"labels", "indices_tuple", "references", "state", "tiles"})
LOCAL = "local"  # the plugin name of classes registered in the running process
BUILTIN = "pml"  # the plugin name of what the core itself registers; not open to entry points
_BUILTIN_MODULE = "pml_ext.builtin"
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")

T = TypeVar("T")


class PluginWarning(UserWarning):
    """A plugin was left out; the text says which and why."""


@dataclasses.dataclass(frozen=True)
class Paper:
    """Where a method comes from.

    Args:
        title: the paper's title.
        authors: its authors, for example ``"Kan et al."``.
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
        name: kebab-case, unique per kind, for example ``"cbml"``.
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


@dataclasses.dataclass
class PluginRecord:
    """An entry point and what became of it.

    Args:
        name: the entry point's name.
        distribution: the distribution that declares it.
        version: that distribution's version.
        module: what the entry point names.
        status: ``"ok"``, ``"broken"``, ``"blocked"`` (by PML_EXT_BLOCK) or ``"not allowed"`` (by PML_EXT_PLUGINS).
        error: why it is broken.
    """

    name: str
    distribution: str
    version: str
    module: str
    status: str = "ok"
    error: str = ""


class Registry:
    """Components, recipes, data sets and trunks of all plugins.

    Entry points are read once, at the first look-up. Each is imported, checked and asked in a guard of its own: one
    that fails is reported in a :class:`PluginWarning`, listed as broken by :meth:`plugins`, and otherwise ignored.
    The environment variable ``PML_EXT_PLUGINS`` is an allow-list of entry-point names, comma-separated (empty: none),
    ``PML_EXT_BLOCK`` a deny-list.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._loaded = self._loading = False
        self._records: list[PluginRecord] = []
        self._components: list[Component] = []
        self._recipes: dict[str, Traversable] = {}
        self._manager = pluggy.PluginManager(GROUP)
        self._manager.add_hookspecs(hookspecs)
        self._tables: dict[str, dict[str, dict[str, Any]]] = {}  # {hook: {plugin: {name: ...}}}

    # Discovery

    def load(self) -> None:
        """Reads the entry points, unless that was done already."""
        with self._lock:
            if self._loaded or self._loading:
                return
            self._loading = True
            try:
                self._adopt(BUILTIN, importlib.import_module(_BUILTIN_MODULE))
                self._components += _pml_components()
                self._load_entry_points()
                self._loaded = True
            finally:
                self._loading = False

    def _load_entry_points(self) -> None:
        allowed, blocked = _names_in("PML_EXT_PLUGINS"), _names_in("PML_EXT_BLOCK") or set()
        seen: set[tuple[str, str, str]] = set()
        for point in sorted(metadata.entry_points(group=GROUP), key=lambda point: point.name):
            distribution = point.dist.name if point.dist else "unknown"
            key = (point.name, point.value, distribution)
            if key in seen:  # an editable install and its folder on the path both show the same one
                continue
            seen.add(key)
            record = PluginRecord(point.name, distribution, point.dist.version if point.dist else "", point.value)
            self._records.append(record)
            if point.name in blocked:
                record.status = "blocked"
            elif allowed is not None and point.name not in allowed:
                record.status = "not allowed"
            else:
                self._guarded(record, functools.partial(self._load_one, point))
        for name in sorted((allowed or set()) - {record.name for record in self._records}):
            installed = ", ".join(sorted({record.name for record in self._records})) or "none"
            warnings.warn(f"PML_EXT_PLUGINS names {name!r}, which is not installed (installed: {installed})",
                          PluginWarning, stacklevel=2)  # fmt: skip

    def _load_one(self, point: metadata.EntryPoint) -> None:
        if not _NAME.fullmatch(point.name) or point.name in (LOCAL, BUILTIN):
            raise PluginError(
                f"an entry point's name is kebab-case and not {LOCAL!r} or {BUILTIN!r}, not {point.name!r}"
            )
        if self._manager.has_plugin(point.name):
            raise PluginError(f"another distribution already claims the entry-point name {point.name!r}; "
                              "rename one of them")  # fmt: skip
        self._adopt(point.name, point.load())

    def _adopt(self, name: str, plugin: object) -> None:
        """Registers a plugin's module, checks its hooks, and takes what it offers; all or nothing."""
        self._manager.register(plugin, name=name)
        try:
            self._manager.check_pending()
            components = [_checked(component, name) for component in _flatten(self._ask(name, "pml_ext_components"))]
            recipes = dict(_recipes_in(name, _flatten(self._ask(name, "pml_ext_recipes"))))
        except BaseException:
            self._drop(name)
            raise
        self._components += components
        self._recipes |= recipes

    def _drop(self, name: str) -> None:
        """Forgets a plugin and all that it offered."""
        self._manager.unregister(name=name)
        self._components = [component for component in self._components if component.plugin != name]
        self._recipes = {recipe: path for recipe, path in self._recipes.items() if not recipe.startswith(f"{name}/")}
        for tables in self._tables.values():
            tables.pop(name, None)

    def _ask(self, plugin: str, hook: str) -> list[Any]:
        others = [other for name, other in self._manager.list_name_plugin() if name != plugin]
        return list(self._manager.subset_hook_caller(hook, others)())

    def _guarded(self, record: PluginRecord, action: Callable[[], None]) -> None:
        """Runs one plugin's code; if it fails, the plugin is recorded as broken and reported."""
        try:
            action()
        except (Exception, SystemExit) as error:
            record.status, record.error = "broken", f"{type(error).__name__}: {error}"
            warnings.warn(
                f"the plugin {record.name!r} of {record.distribution} {record.version} is broken and was left out: "
                f"{record.error} (PML_EXT_BLOCK={record.name} leaves it out silently)", PluginWarning, stacklevel=2,
            )  # fmt: skip

    def _records_of(self, name: str) -> list[PluginRecord]:
        return [record for record in self._records if record.name == name]

    def plugins(self) -> list[PluginRecord]:
        """The entry points found, with what became of them; all their hooks are asked."""
        self.load()
        for hook in ("pml_ext_datasets", "pml_ext_trunks", "pml_ext_benchmark_peers"):
            self._named(hook)
        return list(self._records)

    # Components

    def components(self, kind: str | None = None) -> list[Component]:
        """All components, or those of one kind, sorted by name.

        Args:
            kind: one of :data:`KINDS`.
        """
        if kind is not None and kind not in KINDS:
            raise UnknownNameError(f"no kind {kind!r}; kinds are {', '.join(KINDS)}")
        self.load()
        found = [c for c in self._components if kind is None or c.kind == kind]
        return sorted(found, key=lambda c: (c.name.startswith("pml/"), c.name, c.plugin))

    def get(self, name: str, kind: str | None = None) -> Component:
        """The component of a name.

        Args:
            name: ``"cbml"``, ``"pml/multi-similarity"``, or ``"entry-point:name"``.
            kind: one of :data:`KINDS`; needed where two kinds share the name.

        Raises:
            UnknownNameError: nothing, or more than one kind, has the name.
            PluginError: two plugins claim the name.
        """
        components = self.components(kind)
        found = [c for c in components if name in (c.name, c.qualified_name)]
        if len(found) == 1:
            return found[0]
        if not found:
            raise UnknownNameError(unknown(kind or "component", name, (c.name for c in components)))
        if len({c.kind for c in found}) > 1:
            kinds = " and ".join(f"a {c.kind}" for c in found)
            raise UnknownNameError(f"{name!r} is {kinds}; say which, for example kind={found[0].kind!r}")
        raise PluginError(_clash(name, {c.qualified_name: self._owner(c.plugin) for c in found}))

    def build(
        self, name: str, kind: str | None = None, context: Mapping[str, Any] | None = None, /, **settings: Any
    ) -> Any:
        """An instance of a component.

        A setting that is a table with a ``name`` (``distance={"name": "pml/lp", "p": 2}``) is built first; its kind is
        that of the setting's name.

        Args:
            name: as in :meth:`get`.
            kind: as in :meth:`get`; ``kind="loss"`` is understood too, beside classes that have a setting ``kind``.
            context: what required settings are taken from that are left out, here and in such tables: see
                :func:`required`.
            settings: keyword arguments of the class.

        Raises:
            ConfigError: a setting that the class does not have; the text has the nearest ones.
        """
        if kind is None and settings.get("kind") in KINDS:
            kind = settings.pop("kind")
        component = self.get(name, kind)
        check_settings(component.name, component.settings, settings)
        built = {key: self._built(key, value, context) for key, value in settings.items()}
        return component.cls(**required(component.cls, context or {}, settings)[0], **built)

    def _built(self, key: str, value: Any, context: Mapping[str, Any] | None) -> Any:
        kind = key.rsplit("_", 1)[-1]
        if isinstance(value, Mapping) and "name" in value and kind in KINDS:
            return self.build(value["name"], kind, context, **{k: v for k, v in value.items() if k != "name"})
        return value

    def register(self, cls: type, name: str, paper: Paper | None = None) -> None:
        """Registers a class in the running process; the same name again replaces it."""
        component = _checked(Component(cls, name, paper), LOCAL)
        with self._lock:
            self.load()
            key = (component.qualified_name, component.kind)
            self._components = [c for c in self._components if (c.qualified_name, c.kind) != key] + [component]

    def unregister_local(self) -> None:
        """Forgets the classes that :meth:`register` added."""
        self._components = [component for component in self._components if component.plugin != LOCAL]

    def class_names(self) -> dict[str, list[Component]]:
        """Registered classes, PML's left out, by class name: what ``from pml_ext import X`` offers."""
        if self._loading:  # a plugin that imports another plugin's class while it is itself being loaded
            return {}
        found: dict[str, list[Component]] = {}
        for component in self.components():
            if not component.name.startswith("pml/"):
                found.setdefault(component.cls.__name__, []).append(component)
        return found

    def class_by_name(self, class_name: str) -> type:
        """The registered class of a class name.

        Raises:
            UnknownNameError: no such class; the text has the nearest ones.
            PluginError: two plugins have a class of that name.
        """
        names = self.class_names()
        classes = {c.cls: c for c in names.get(class_name, [])}
        if len(classes) == 1:
            return next(iter(classes))
        if classes:
            owners = {c.qualified_name: self._owner(c.plugin) for c in classes.values()}
            raise PluginError(_clash(class_name, owners, "pml_ext.registry.get({!r}).cls"))
        raise UnknownNameError(unknown("class", class_name, names))

    def _owner(self, plugin: str) -> str:
        records = [record for record in self._records_of(plugin) if record.status == "ok"]
        return f"{records[0].distribution} {records[0].version}" if records else "this process"

    # Recipes, data sets, trunks, peers

    def recipes(self) -> dict[str, Traversable]:
        """Recipe files by name, sorted."""
        self.load()
        return dict(sorted(self._recipes.items()))

    def recipe(self, name: str) -> Traversable:
        """The file of a recipe.

        Raises:
            UnknownNameError: no such recipe; the text has the nearest names.
        """
        recipes = self.recipes()
        if name not in recipes:
            raise UnknownNameError(unknown("recipe", name, recipes))
        return recipes[name]

    def datasets(self) -> dict[str, Callable[..., Any]]:
        """Factories of data sets by name; a name that two plugins claim is there as ``entry-point:name``."""
        return self._by_name("pml_ext_datasets")

    def dataset(self, name: str) -> Callable[..., Any]:
        """The factory of a data set: see :func:`pml_ext.hookspecs.pml_ext_datasets`."""
        return self._one("data set", "pml_ext_datasets", name)

    def trunks(self) -> dict[str, Callable[..., Any]]:
        """Factories of trunks by name; a name that two plugins claim is there as ``entry-point:name``."""
        return self._by_name("pml_ext_trunks")

    def trunk(self, name: str) -> Callable[..., Any]:
        """The factory of a trunk: see :func:`pml_ext.hookspecs.pml_ext_trunks`."""
        return self._one("trunk", "pml_ext_trunks", name)

    def benchmark_peers(self, component: Component) -> dict[str, Callable[..., Any]]:
        """What ``pml-ext bench`` measures a loss against, by label."""
        return dict(self._named("pml_ext_benchmark_peers").get(component.plugin, {}).get(component.name, {}))

    def _named(self, hook: str) -> dict[str, dict[str, Any]]:
        """What each plugin returns from a hook that gives ``{name: ...}``, asked once."""
        self.load()
        with self._lock:
            if hook not in self._tables:
                self._tables[hook] = {BUILTIN: self._table(BUILTIN, hook)}
                for record in self._records:
                    if record.status == "ok":
                        self._guarded(record, functools.partial(self._take_table, record.name, hook))
            return self._tables[hook]

    def _take_table(self, plugin: str, hook: str) -> None:
        try:
            self._tables[hook][plugin] = self._table(plugin, hook)
        except BaseException:
            self._drop(plugin)
            raise

    def _table(self, plugin: str, hook: str) -> dict[str, Any]:
        table: dict[str, Any] = {}
        for answer in self._ask(plugin, hook):
            if not isinstance(answer, Mapping) or not all(isinstance(key, str) for key in answer):
                raise PluginError(f"{hook} must return a mapping with names as keys, not {answer!r}")
            table |= answer
        return table

    def _claims(self, hook: str) -> dict[str, dict[str, Any]]:
        """``{name: {plugin: factory}}``."""
        claims: dict[str, dict[str, Any]] = {}
        for plugin, table in self._named(hook).items():
            for name, factory in table.items():
                claims.setdefault(name, {})[plugin] = factory
        return claims

    def _by_name(self, hook: str) -> dict[str, Any]:
        names: dict[str, Any] = {}
        for name, owners in self._claims(hook).items():
            if len(owners) == 1:
                names[name] = next(iter(owners.values()))
            else:
                names |= {f"{plugin}:{name}": factory for plugin, factory in owners.items()}
        return dict(sorted(names.items()))

    def _one(self, what: str, hook: str, name: str) -> Callable[..., Any]:
        claims = self._claims(hook)
        plugin, _, short = name.partition(":")
        if short in claims and plugin in claims[short]:
            return claims[short][plugin]  # type: ignore[no-any-return]
        if name not in claims:
            raise UnknownNameError(unknown(what, name, claims))
        if len(claims[name]) > 1:
            raise PluginError(_clash(name, {f"{p}:{name}": self._owner(p) for p in claims[name]}))
        return next(iter(claims[name].values()))  # type: ignore[no-any-return]


# Classes


def kind_of(cls: type) -> str:
    """The kind of a class, by the PML (or ``pml_ext``, or torch) base class that it extends.

    Raises:
        TypeError: it extends none of them.
    """
    for kind, bases in _bases().items():
        if issubclass(cls, bases):
            return kind
    wanted = "; ".join(f"a {kind}: {bases[0].__module__}.{bases[0].__name__}" for kind, bases in _bases().items())
    raise TypeError(f"{cls.__module__}.{cls.__qualname__} extends none of the base classes of components ({wanted})")


def _bases() -> dict[str, tuple[type, ...]]:
    from pytorch_metric_learning import distances, losses, miners, reducers, regularizers
    from torch.utils.data import Sampler

    return {
        "loss": (losses.BaseMetricLossFunction, losses.BaseLossWrapper, losses.MultipleLosses),
        "miner": (miners.BaseMiner,),
        "regularizer": (regularizers.BaseRegularizer,),
        "distance": (distances.BaseDistance,),
        "sampler": (Sampler,),
        "reducer": (reducers.BaseReducer,),
    }


_DEFAULT_CAPABILITIES = frozenset({"labels", "indices_tuple"})
# PML's losses that take references, as their sources say; those that refuse or ignore them are left out, and NCALoss,
# which compares an embedding with its own copy among them, whatever the indices_tuple says.
_PML_WITH_REFERENCES = [
    "AngularLoss",
    "CircleLoss",
    "ContrastiveLoss",
    "DynamicSoftMarginLoss",
    "GeneralizedLiftedStructureLoss",
    "IntraPairVarianceLoss",
    "LiftedStructureLoss",
    "MarginLoss",
    "MultiSimilarityLoss",
    "NTXentLoss",
    "SignalToNoiseRatioContrastiveLoss",
    "SupConLoss",
    "TripletMarginLoss",
    "TupletMarginLoss",
]
_PML_CAPABILITIES: dict[str, frozenset[str]] = {
    **{name: _DEFAULT_CAPABILITIES | {"references"} for name in _PML_WITH_REFERENCES},
    **{name: frozenset({"labels"}) for name in ("InstanceLoss", "P2SGradLoss", "PNPLoss", "RankedListLoss")},
    "ManifoldLoss": frozenset({"indices_tuple"}),
    "VICRegLoss": frozenset({"references"}),
    "SelfSupervisedLoss": frozenset({"references"}),
    "CrossBatchMemory": _DEFAULT_CAPABILITIES | {"state"},
}


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
    return _pml_capabilities(component if isinstance(component, type) else type(component))


@functools.cache
def _pml_capabilities(cls: type) -> frozenset[str]:
    pml = next((base for base in cls.__mro__ if base.__module__.startswith("pytorch_metric_learning.")), None)
    return _PML_CAPABILITIES.get(pml.__name__, _DEFAULT_CAPABILITIES) if pml else _DEFAULT_CAPABILITIES


# What PML's base classes require and its losses pass to them by themselves.
_PASSED_BY_SUBCLASSES = frozenset({"mat_based_loss"})


def settings_of(target: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The keyword arguments that a class or a function accepts.

    A class that hands ``**kwargs`` to its base classes has those of theirs too, nearest class first.
    """
    if not isinstance(target, type):
        return {p.name: p for p in _parameters(target) if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    found: dict[str, inspect.Parameter] = {}
    for base in target.__mro__:
        if "__init__" not in vars(base) or base.__module__.startswith("torch."):
            continue
        parameters = _parameters(vars(base)["__init__"])[1:]
        named = (p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
        found = {p.name: p for p in named if p.name not in _PASSED_BY_SUBCLASSES} | found
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return found


def required(
    target: Callable[..., Any], context: Mapping[str, Any], given: Iterable[str] = ()
) -> tuple[dict[str, Any], list[str]]:
    """Settings without a default, from what is known beside them.

    One that the context does not have, but whose annotation is a component's class (``distance: PDDMDistance``), is an
    instance of that, made from the context in the same way.

    Args:
        target: a class or a function.
        context: values by name, such as ``{"embedding_size": 64}``.
        given: names that need no value.

    Returns:
        Values by name, and the names of those that are still missing.
    """
    values: dict[str, Any] = {}
    missing = []
    given = set(given)
    for name, parameter in settings_of(target).items():
        if parameter.default is not parameter.empty or name in given:
            continue
        annotation = parameter.annotation
        if name in context:
            values[name] = context[name]
        elif isinstance(annotation, type) and issubclass(
            annotation, tuple(b for base in _bases().values() for b in base)
        ):
            inner, lacking = required(annotation, context)
            if (
                lacking
                or inspect.isabstract(annotation)
                or annotation.__module__.startswith("pytorch_metric_learning.")
            ):
                missing.append(name)
            else:
                values[name] = annotation(**inner)
        else:
            missing.append(name)
    return values, missing


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters, annotations as types where the module's names allow that."""
    found = list(inspect.signature(function).parameters.values())
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    names = getattr(inspect.unwrap(inner), "__globals__", {})
    return [p.replace(annotation=_resolved(p.annotation, names)) for p in found]


def _resolved(annotation: Any, names: dict[str, Any]) -> Any:
    """What a text stands for in a module; the text itself where it does not (a name for type checkers alone, say)."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, names)
    except Exception:  # an annotation can be any expression
        return annotation


def check_settings(owner: str, accepted: Iterable[str], given: Iterable[str]) -> None:
    """Refuses names that are not accepted.

    Args:
        owner: whose settings they are, for the text.
        accepted: the names that it has.
        given: the names to check.

    Raises:
        ConfigError: naming the first unknown one and the nearest accepted ones.
    """
    accepted = list(accepted)
    for name in given:
        if name not in accepted:
            raise ConfigError(unknown(f"setting of {owner}", name, accepted))


def _pml_components() -> list[Component]:
    """PML's own classes under ``pml/...``: kebab-case of the class name without its kind."""
    from pytorch_metric_learning import distances, losses, miners, reducers, regularizers, samplers

    paper = Paper("PyTorch Metric Learning", "Musgrave et al.", 2020, "https://arxiv.org/abs/2008.09164")
    bases = tuple(base for kind in _bases().values() for base in kind)
    return [
        Component(cls, _pml_name(name), paper, plugin="pytorch-metric-learning")
        for module in (losses, miners, regularizers, distances, samplers, reducers)
        for name, cls in vars(module).items()
        if isinstance(cls, type) and issubclass(cls, bases) and not name.startswith(("Base", "Generic"))
    ]


def _pml_name(class_name: str) -> str:
    stem = re.sub(r"(Loss|Miner|Regularizer|Distance|Sampler|Reducer)$", "", class_name)
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", stem).lower()
    for split, joined in (("arc-face", "arcface"), ("cos-face", "cosface"), ("sphere-face", "sphereface"),
                          ("nt-xent", "ntxent"), ("vic-reg", "vicreg"), ("sup-con", "supcon"),
                          ("p2-s-grad", "p2s-grad")):  # fmt: skip
        words = words.replace(split, joined)
    return f"pml/{words}"


# Helpers


def _names_in(variable: str) -> set[str] | None:
    value = os.environ.get(variable)
    return None if value is None else {name.strip() for name in value.split(",") if name.strip()}


def _flatten(answers: Sequence[Any]) -> Iterator[Any]:
    for answer in answers:
        if isinstance(answer, (str, bytes)) or not isinstance(answer, Iterable):
            raise PluginError(f"a hook must return a list, not {answer!r}")
        yield from answer


def _checked(component: Any, plugin: str) -> Component:
    if not isinstance(component, Component):
        raise PluginError(f"pml_ext_components must return Component(...) entries, not {component!r}")
    if not isinstance(component.cls, type):
        raise PluginError(f"a component is a class, not {component.cls!r}")
    if not _NAME.fullmatch(component.name):
        raise PluginError(
            f"a component's name is kebab-case (letters a-z, digits, single hyphens), not {component.name!r}"
        )
    if component.paper is not None and not isinstance(component.paper, Paper):
        raise PluginError(f"{component.name}: paper must be a Paper(...), not {component.paper!r}")
    kind_of(component.cls)
    unknown = set(capabilities(component.cls)) - CAPABILITIES if _declares_plainly(component.cls) else set()
    if unknown:
        raise PluginError(f"{component.name}: unknown capabilities {sorted(unknown)}; known are {sorted(CAPABILITIES)}")
    return dataclasses.replace(component, plugin=plugin)


def _declares_plainly(cls: type) -> bool:
    """Whether ``capabilities`` is a plain value of the class; a wrapper may have a property that asks what it wraps."""
    return not isinstance(inspect.getattr_static(cls, "capabilities", None), property)


def _recipes_in(plugin: str, folders: Iterable[Traversable]) -> Iterator[tuple[str, Traversable]]:
    for folder in folders:
        if not folder.is_dir():
            raise PluginError(f"pml_ext_recipes of {plugin!r} names {folder}, which is not a folder")
        yield from _recipe_files(plugin, folder)


def _recipe_files(prefix: str, folder: Traversable) -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _recipe_files(f"{prefix}/{entry.name}", entry)
        elif entry.name.endswith(".toml"):
            yield f"{prefix}/{entry.name.removesuffix('.toml')}", entry


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """A sentence about a name that is not there, with the nearest ones.

    Args:
        what: what was looked for, for example ``"loss"``.
        name: what was typed.
        known: the names that there are.
    """
    known = list(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    near += [other for other in known if other.rsplit("/", 1)[-1] == name and other not in near]
    if near:
        return f"no {what} {name!r}; nearest: {', '.join(near)}"
    return f"no {what} {name!r}; known: {', '.join(known[:12])}{' ...' if len(known) > 12 else ''}"


def _clash(name: str, owners: Mapping[str, str], form: str = "{!r}") -> str:
    claims = " and ".join(f"{form.format(qualified)} ({owner})" for qualified, owner in owners.items())
    return f"{name!r} is claimed by two plugins; use {claims}, or leave one out with PML_EXT_BLOCK"


# The registry of the process

_registry = Registry()
load = _registry.load
plugins = _registry.plugins
components = _registry.components
unregister_local = _registry.unregister_local
get = _registry.get
build = _registry.build
class_names = _registry.class_names
class_by_name = _registry.class_by_name
recipes = _registry.recipes
recipe = _registry.recipe
datasets = _registry.datasets
dataset = _registry.dataset
trunks = _registry.trunks
trunk = _registry.trunk
benchmark_peers = _registry.benchmark_peers


def register(cls: type | None = None, *, name: str | None = None, paper: Paper | None = None) -> Any:
    """Registers a class in the running process, for notebooks and scripts.

    Use it as ``@register`` or ``@register(name="mine", paper=Paper(...))``. The class is then known to
    :func:`get`, :func:`build` and ``from pml_ext import X``. Registering the same name again replaces the class.

    Args:
        cls: the class.
        name: its name, kebab-case; by default made of the class name (``MyOwnLoss`` becomes ``my-own``).
        paper: where the method comes from.

    Returns:
        The class itself, so that it serves as a decorator.
    """

    def decorate(target: type) -> type:
        _registry.register(target, name or _pml_name(target.__name__).removeprefix("pml/"), paper)
        return target

    return decorate if cls is None else decorate(cls)
