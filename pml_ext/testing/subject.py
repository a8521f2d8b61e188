"""The registry of checks, and the component under check."""

import contextlib
import copy
import dataclasses
import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from .. import registry
from ..errors import ConfigError
from ..registry import BuildContext, check_settings, fill_settings

SIZE = 8  # default embedding size
CLASSES = 6  # default number of classes
BATCH_SIZE = 12  # of samplers
# Arguments of PML's base classes, which the checks of settings do not vary.
INHERITED = {"distance", "reducer", "collect_stats", "is_inverted", "tile_size", "relation"} | {
    *("embedding_regularizer", "embedding_reg_weight", "weight_regularizer", "weight_reg_weight", "weight_init_func")
}

Settings = Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Sequence[Any]]]


class SkipCheck(Exception):
    """A check does not apply; the text says why."""


def require(condition: object, problem: str) -> None:
    """Fail a check with the problem unless a condition holds, also under ``python -O``."""
    if not condition:
        raise AssertionError(problem)


def skip_unless(condition: object, reason: str) -> None:
    """Skip a check for the reason unless a condition holds."""
    if not condition:
        raise SkipCheck(reason)


def set_seed(number: int) -> None:
    """Seed torch's CPU generator; ``torch.manual_seed`` is slower, because it seeds GPUs too."""
    torch.default_generator.manual_seed(number)


@contextlib.contextmanager
def kept_generators() -> Iterator[None]:
    """Restore torch's generators afterwards, on the CPU and on GPUs in use."""
    devices = range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices):
        yield


@dataclasses.dataclass
class Findings:
    """Results of one check that other checks need."""

    settings_of_process: dict[str, Any] = dataclasses.field(default_factory=dict)  # before the first call
    failures: dict[str, str] = dataclasses.field(default_factory=dict)  # by check; "" for one that does not fail
    outcomes: dict[str, list[torch.Tensor]] = dataclasses.field(default_factory=dict)  # by case and settings


@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """A component under check, equal only to itself, so that findings can be cached."""

    name: str  # of the class
    kind: str
    make: Callable[..., Any]  # returns a new, equal instance in float64; for a class, with settings if given
    build: Callable[[], Any]  # returns a new instance as its user builds it, with the global generators as they are
    size: int  # of embeddings
    classes: int
    cls: type | None = None  # None where an instance was given
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of the class, for all but the grid's checks
    grid: Sequence[Mapping[str, Any]] | None = None  # settings of the comparison; None if nothing is compared
    reference: Callable[..., Any] | None = None
    without_effect: frozenset[str] = frozenset()  # settings that change how the value is computed, not the value
    registered: registry.Component | None = None  # the entry of a plugin that was given
    findings: Findings = dataclasses.field(init=False, repr=False, default_factory=Findings)

    @functools.cached_property
    def capabilities(self) -> frozenset[str]:
        """The capabilities that an instance declares."""
        return registry.capabilities(self.make())

    @functools.cached_property
    def accepted(self) -> dict[str, inspect.Parameter]:
        """The settings that the class accepts; empty for an instance."""
        return {} if self.cls is None else registry.settings_of(self.cls)

    @functools.cached_property
    def has_class_rows(self) -> bool:
        """Whether labels index a tensor, with one row per class or, by num_classes, several."""
        component = self.make()
        if not isinstance(component, torch.nn.Module):
            return False
        several = hasattr(component, "num_classes") or "num_classes" in registry.settings_of(type(component))
        for tensor in (*component.parameters(), *component.buffers()):
            for length in tensor.shape:
                if length == self.classes or (several and length and length % self.classes == 0):
                    return True
        attributes = [value for value in vars(component).values() if isinstance(value, torch.Tensor)]
        return any(value.ndim > 0 and len(value) == self.classes for value in attributes)  # such as a weight per class


Check = Callable[[Subject], str | None]
CHECKS: dict[str, list[Check]] = {kind: [] for kind in registry.KINDS}
SLOW: set[Check] = set()


def applies_to(*kinds: str, slow: bool = False) -> Callable[[Check], Check]:
    """Register a check for some kinds; a ``slow`` one needs more than a CPU in this process."""

    def register(check: Check) -> Check:
        if slow:
            SLOW.add(check)
        for kind in kinds:
            CHECKS[kind].append(check)
        return check

    return register


def takes_labels(component: Any) -> bool:
    """Whether a component uses labels: PML's regularizers and a few losses do not."""
    kind = registry.kind_of(type(component))
    if kind in ("loss", "miner"):
        return kind == "miner" or "labels" in registry.capabilities(component)
    return "labels" in getattr(component, "capabilities", ())


def label_arguments(component: Any, labels: torch.Tensor) -> list[torch.Tensor]:
    """The arguments of a call that follow the embeddings."""
    return [labels] if takes_labels(component) else []


def subject_of(
    component: Any,
    reference: Callable[..., Any] | None = None,
    settings: Settings | None = None,
    without_effect: Iterable[str] = (),
    embedding_size: int | None = None,
    num_classes: int | None = None,
) -> Subject:
    """A component as a subject; see :func:`pml_ext.testing.check_component`."""
    grid = _grid(settings or {})
    fixed = dict[str, Any]()
    if isinstance(component, functools.partial):
        names = inspect.signature(component.func).parameters
        fixed = dict(zip(names, component.args, strict=False)) | component.keywords
        component = component.func
    registered = None
    if isinstance(component, registry.Component):
        registered = component
        component = component.cls
    if isinstance(component, type):
        known = registry.settings_of(component)
        given = {"embedding_size": embedding_size, "num_classes": num_classes}
        for name, size in given.items():
            if size is not None and name in known:
                fixed.setdefault(name, size)
        sizes = {
            "embedding_size": embedding_size or _default_of(component, "embedding_size") or SIZE,
            "num_classes": num_classes or _default_of(component, "num_classes") or CLASSES,
        }
        subject = _of_class(component, fixed, grid[0], sizes)
        check_settings(subject.name, known, {*without_effect}.union(*grid))
    elif settings or without_effect:
        name = type(component).__name__
        raise ConfigError(f"settings are varied by building a class; {name} is built already; give the class {name}")
    else:
        subject = _of_instance(component, embedding_size, num_classes)
    is_compared = reference is not None or settings is not None or without_effect
    return dataclasses.replace(
        subject,
        registered=registered,
        grid=grid if is_compared else None,
        reference=reference,
        without_effect=frozenset(without_effect),
    )


def _default_of(cls: type, name: str) -> int:
    default = getattr(registry.settings_of(cls).get(name), "default", None)
    return max(0, default) if isinstance(default, int) else 0


def _grid(settings: Settings) -> list[dict[str, Any]]:
    tables = [settings] if isinstance(settings, Mapping) else list(settings)
    for table in tables:
        for name, values in table.items():
            if not isinstance(values, (list, tuple)) or not values:
                raise ConfigError(
                    f"each setting needs a list of values, such as {{{name!r}: [{values!r}]}}; got {name!r}: {values!r}"
                )

    grid: list[dict[str, Any]] = []
    for table in tables:
        grid += [dict(zip(table, values, strict=True)) for values in itertools.product(*table.values())]
    return grid


def _of_instance(component: Any, size: int | None, classes: int | None) -> Subject:
    parts = list(component.modules()) if isinstance(component, torch.nn.Module) else [component]

    def first(*names: str) -> int:
        sizes = [getattr(part, name, None) for part, name in itertools.product(parts, names)]
        return next((size for size in sizes if isinstance(size, int) and size > 0), 0)

    return Subject(
        type(component).__name__,
        registry.kind_of(type(component)),
        lambda _=None: _in_float64(copy.deepcopy(component)),
        lambda: copy.deepcopy(component),
        size or first("embedding_size", "in_features") or SIZE,
        classes or first("num_classes") or CLASSES,
    )


def _of_class(cls: type, fixed: dict[str, Any], first: dict[str, Any], sizes: dict[str, int]) -> Subject:
    labels = torch.arange(CLASSES).repeat_interleave(4).numpy()
    kind = registry.kind_of(cls)
    settings = {**fixed, **first}
    context: BuildContext = {"labels": labels, "batch_size": BATCH_SIZE, "length_before_new_iter": 24, **sizes}  # type: ignore[typeddict-item]
    if missing := fill_settings(cls, context, settings)[1]:
        raise ConfigError(
            f"{cls.__name__} needs {', '.join(missing)}, which no batch gives; check an instance built with its "
            f"settings: check_component({cls.__name__}(...))"
        )

    def build(other: Mapping[str, Any] = first) -> Any:
        chosen = copy.deepcopy({**fixed, **other})
        return cls(**fill_settings(cls, context, chosen)[0], **chosen)

    def make(other: Mapping[str, Any] | None = None) -> Any:
        with kept_generators():
            set_seed(0)  # instances with random parameters are equal
            return _in_float64(build(first if other is None else other))

    size = settings.get("embedding_size", sizes["embedding_size"])
    classes = settings.get("num_classes", sizes["num_classes"])
    return Subject(cls.__name__, kind, make, build, size, classes, cls, settings)


def with_noise(component: Any) -> Any:
    """Add noise to a component's parameters, which may all be equal at first."""
    generator = torch.Generator().manual_seed(8)
    with torch.no_grad():
        for parameter in component.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64), alpha=0.1)
    return component


def _in_float64(component: Any) -> Any:
    if isinstance(component, torch.nn.Module):
        return component.double()
    return component
