"""Write ``stable.txt``, the list of the page ``stable.md``: ``python docs/stable.py``. A test compares both.

A line is a name, with its signature or default. A line that changes or goes away is a change for users: ``stable.md``
says what that takes. Lines that end in ``# provisional`` may change in any release.
"""

import inspect
import types
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, get_args

import pydantic
import torch
import typer

import pml_ext
import pml_ext.testing
from pml_ext import registry
from pml_ext.settings import settings_of
from pml_ext_search import Answer, TrainedRun
from pml_ext_train.cli.app import app_for
from pml_ext_train.recipe.schema import Recipe
from pml_ext_train.records import run_files as folder

PATH = Path(__file__).with_suffix(".txt")
PROVISIONAL = (
    "pml_ext.evaluation.*",
    "pml_ext.keep_freed_memory*",
    "pml_ext.registry.*",
    "TrainedRun.copy_to_store*",
    "TrainedRun.open_*",
    "TrainedRun.duplicates*",
    "TrainedRun.embed_part*",
    "TrainedRun.group*",
    "TrainedRun.match*",
    "TrainedRun.place",
    "TrainedRun.write_index*",
    "pml-ext browse*",
    "pml-ext duplicates*",
    "pml-ext enroll*",
    "pml-ext identify*",
    "pml-ext probe*",
    "pml-ext select*",
    "pml-ext fit --labels",
    "pml-ext fit --no-labels",
    "pml-ext * --on",
    "pml-ext * --part",
    "pml-ext * --ray-address",
    "pml-ext * --store",
    "pml-ext * --to",
    "pml-ext * --tune",
    "tune.*",
)
# What the pages show of modules that have more.
OF_MODULES = {
    "evaluation": "KReciprocal NearestNeighbors QueryExpansion best_threshold class_means listed_pairs "
    "nearest_class_mean pair_scores pairs_of_classes related_means scores_of_pairs scores_of_triplets "
    "triplet_accuracy tuple_metrics verification_metrics verify",
    "registry": "get recipes",
    "testing": " ".join(pml_ext.testing.__all__),
}
# Used by their methods, where other classes are called as PML's are. TrainedRun is what load_run returns.
WITH_METHODS = [
    pml_ext.RetrievalAccuracyCalculator,
    pml_ext.Relation,
    pml_ext.WithinClassWhitening,
    TrainedRun,
    Answer,
]


def text() -> str:
    """Return the list."""
    sections = {
        "Classes and functions": _names(),
        "Methods": _methods(),
        "Functions of modules": _of_modules(),
        "Commands: arguments in capitals, options": _commands(),
        "Keys of recipes, with their defaults": _keys(Recipe, ""),
        "Files of a run": iter(sorted([*folder.FILES, folder.SUMS])),
    }
    lines = []
    for title, entries in sections.items():
        lines += [f"## {title}", ""]
        for entry in entries:
            provisional = any(fnmatchcase(entry, pattern) for pattern in PROVISIONAL)
            lines.append(f"{entry}  # provisional" if provisional else entry)
        lines.append("")
    return "\n".join(lines)


def _names() -> Iterator[str]:
    """Yield the names of ``pml_ext`` that are no modules."""
    for name in sorted({*pml_ext._NAMES, *pml_ext._OF_PLUGINS}):
        value = getattr(pml_ext, name)
        if not isinstance(value, types.ModuleType):
            yield f"pml_ext.{name}{signature(value)}"


def _methods() -> Iterator[str]:
    """Yield the public methods and properties of classes that are used by them."""
    for cls in WITH_METHODS:
        names = set()
        for base in cls.__mro__:
            if base.__module__.startswith("pml_ext"):
                names |= {*vars(base), *inspect.get_annotations(base)}
        for name in sorted(names):
            if not name.startswith("_") and not hasattr(torch.nn.Module, name):
                method = inspect.getattr_static(cls, name, None)
                yield f"{cls.__name__}.{name}{signature(method, of_class=True)}"


def _of_modules() -> Iterator[str]:
    for module, names in OF_MODULES.items():
        for name in names.split():
            yield f"pml_ext.{module}.{name}{signature(getattr(getattr(pml_ext, module), name))}"


def _commands() -> Iterator[str]:
    for name, (_, command) in sorted(registry.commands().items()):
        if not command.function.startswith("pml_ext"):  # somebody else's
            continue
        group = typer.main.get_command(app_for([name]))
        yield f"pml-ext {name}"
        for parameter in group.commands[name].params:  # type: ignore[attr-defined]
            if parameter.param_type_name == "argument":
                yield f"pml-ext {name} {parameter.name.upper()}"
            else:
                yield f"pml-ext {name} {', '.join([*parameter.opts, *parameter.secondary_opts])}"


def _keys(table: type[pydantic.BaseModel], prefix: str) -> Iterator[str]:
    """Yield the keys of a table and of the tables in it."""
    for key, field in table.model_fields.items():
        tables = {each for each in _types_in(field.annotation) if issubclass(each, pydantic.BaseModel)}
        inner = []
        for each in sorted(tables, key=lambda found: found.__name__):
            inner += list(_keys(each, f"{prefix}{key}."))
        yield from inner
        if inner and not _is_also_a_word(field.annotation):
            continue
        if field.is_required():
            yield f"{prefix}{key}"
        else:
            yield f"{prefix}{key} = {field.get_default(call_default_factory=True)!r}"


def _is_also_a_word(annotation: Any) -> bool:
    """Return whether a table may be given as one word, ``freeze = "none"``, and has a default that is one."""
    return any(isinstance(argument, str) for argument in _arguments_in(annotation))


def _arguments_in(annotation: Any) -> Iterator[Any]:
    yield annotation
    for argument in get_args(annotation):
        yield from _arguments_in(argument)


def _types_in(annotation: Any) -> Iterator[type]:
    """Yield the classes that an annotation has, those in its unions and lists too."""
    for argument in _arguments_in(annotation):
        if isinstance(argument, type) and not get_args(argument):
            yield argument


def signature(thing: Any, of_class: bool = False) -> str:
    """Return a signature without annotations, with the settings that go to base classes; ``""`` if there is none."""
    if isinstance(thing, (classmethod, staticmethod)):
        thing = thing.__func__
    if isinstance(thing, type) and issubclass(thing, BaseException):
        return ""
    if isinstance(thing, type) and thing.__init__ is torch.nn.Module.__init__:
        return "()"
    try:
        parameters = [*inspect.signature(thing).parameters.values()]
    except (TypeError, ValueError):  # a property or a value
        return ""
    if of_class and parameters and parameters[0].name in ("self", "cls"):
        del parameters[0]
    own = [each for each in parameters if each.kind is not each.VAR_KEYWORD]
    if len(own) < len(parameters) and isinstance(thing, type):
        names = {each.name for each in own}
        own += [each for name, each in settings_of(thing).items() if name not in names]
    return f"({', '.join(map(_shown, own))})"


def _shown(parameter: inspect.Parameter) -> str:
    default = parameter.default
    if default is parameter.empty:
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
        return stars.get(parameter.kind, "") + parameter.name
    if isinstance(default, types.FunctionType):
        return f"{parameter.name}={default.__name__}"
    return f"{parameter.name}={default!r}"


if __name__ == "__main__":
    PATH.write_text(text(), "utf-8")
