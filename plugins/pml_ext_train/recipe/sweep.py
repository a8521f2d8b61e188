"""The variants of ``[sweep]``."""

import itertools
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pml_ext.errors import ConfigError, UnknownNameError

from .override import Override, dropped_by
from .schema import NO_SETTINGS
from .tables import INHERITED, flat, inside, merged, name_or_value, nested, overridden

_MOST_VARIANTS = 10_000
Tables = dict[str, Any]


class _Choice(NamedTuple):
    label: str  # its part of the variant's name
    key: str  # dotted; "" if the value is tables
    value: Any
    inherited: frozenset[str] = frozenset()  # dotted keys of the tables that they extend, and do not set themselves

    def fixed_keys(self) -> set[str]:
        """Return the keys that this choice sets, without those that get a range."""
        keys = flat(nested(self.key, self.value)).keys() - self.inherited
        return {key for key in keys if not any(inside(each, [f"tune.{key}"]) for each in keys)}


class Variants(NamedTuple):
    """The variants of a recipe, overridden, not validated."""

    tables: dict[str, Tables]  # by the variant's full name
    dropped: list[str]  # lines about settings that overrides drop


def expanded(name: str, tables: Tables, overrides: Iterable[Override], source: str) -> Variants:
    """Return the tables of all variants, overridden; ``source`` is for errors."""
    overrides = list(overrides)
    base = without_variant(name)
    sweep = tables.get("sweep", {})
    tables = {key: table for key, table in tables.items() if key != "sweep"}
    for override in overrides:
        override.check_value(tables)
    settings = [(override.key, override.value) for override in overrides]

    if isinstance(sweep, dict):
        sweep = {
            key: values for key, values in sweep.items() if not _is_fixed(key, values, tables, settings, name == base)
        }

    overridden_keys = set().union(*(flat(nested(key, value)) for key, value in settings))

    swept = {}
    variants = {}
    for label, choices in _combinations(sweep, source).items():
        variant = tables
        fixed_keys = set(overridden_keys)
        for choice in choices:
            variant = merged(variant, nested(choice.key, choice.value))
            fixed_keys |= choice.fixed_keys()
        full_name = f"{base}@{label}" if sweep else base
        swept[full_name] = variant
        variant = _without_ranges(overridden(variant, settings), fixed_keys)
        variants[full_name] = _with_row_of_variant(variant, label)

    if settings and name == base:
        _check_still_differ(swept, variants)
    if name != base:
        if name not in variants:
            raise UnknownNameError(f"no variant {name!r}; variants: {', '.join(variants)}")
        variants = {name: variants[name]}
    dropped: list[str] = []
    for full_name, variant in variants.items():
        dropped += dropped_by(overrides, swept[full_name], variant)
    return Variants(variants, [*dict.fromkeys(dropped)])


def without_variant(name: str) -> str:
    """Return a recipe's name or path without the variant after its ``@``."""
    if ".toml" not in name:
        return name.partition("@")[0]
    # The folders of a path may have an "@" as well; the variant's follows the file's suffix.
    path, _, _ = name.removesuffix(".toml").partition(".toml@")
    return f"{path}.toml"


def _is_fixed(key: str, values: Any, tables: Tables, settings: Sequence[tuple[str, Any]], all_variants: bool) -> bool:
    """Return whether overrides fix a swept key: by naming it, or replacing its table.

    A single named variant keeps its value unless the key itself is overridden.
    """
    if not isinstance(values, list):
        return False
    if any(key == given for given, _ in settings):
        return True
    if not key or not settings or not all_variants:
        return False
    first = [value for value in values[:2] if not isinstance(value, dict)]  # an override may equal one, but not both
    after = [overridden(merged(tables, nested(key, value)), settings) for value in first]
    return [name_or_value(key, each) for each in after] != first


def _check_still_differ(swept: Mapping[str, Tables], overridden_variants: Mapping[str, Tables]) -> None:
    """Raise ConfigError if overrides make two variants equal."""
    first_of: dict[str, str] = {}
    for name, tables in overridden_variants.items():
        other = first_of.setdefault(_settings_as_text(tables), name)
        if other != name and _settings_as_text(swept[other]) != _settings_as_text(swept[name]):
            raise ConfigError(
                f"--set, or an option that sets keys, makes the variants {other} and {name} equal; leave it "
                f"out, or name one of them: {other}"
            )


def _settings_as_text(tables: Tables) -> str:
    settings = {key: value for key, value in tables.items() if key not in NO_SETTINGS}
    return json.dumps(settings, sort_keys=True, default=str)


def _without_ranges(tables: Tables, keys: Collection[str]) -> Tables:
    ranges = tables.get("tune")
    if not isinstance(ranges, dict):
        return tables
    return {**tables, "tune": {key: range_ for key, range_ in ranges.items() if key not in keys}}


def _with_row_of_variant(tables: Tables, label: str) -> Tables:
    """Set ``[paper] row`` from ``[paper.variants]``."""
    paper = tables.get("paper")
    if not isinstance(paper, dict) or not isinstance(paper.get("variants"), dict):
        return tables
    paper = dict(paper)
    rows = paper.pop("variants")
    if label in rows:
        paper["row"] = rows[label]
    return {**tables, "paper": paper}


def _combinations(sweep: Any, source: str) -> dict[str, tuple[_Choice, ...]]:
    """Return each variant's choices by label, ``"sqrt,36"``."""
    if not isinstance(sweep, dict):
        raise _wrong_sweep("", sweep, source)
    choices = [_choices(key, values, source) for key, values in sweep.items()]
    count = math.prod(map(len, choices))
    if count > _MOST_VARIANTS:
        raise ConfigError(f"[sweep] has {count:,} variants; wanted at most {_MOST_VARIANTS:,}", source=source)

    combinations = {}
    for combination in itertools.product(*choices):
        label = ",".join(choice.label for choice in combination)
        if label in combinations:
            raise ConfigError(
                f"[sweep]: two variants have the name {label!r}; wanted tables by name, for example [sweep.rows.sqrt]",
                source=source,
            )
        combinations[label] = combination
    return combinations


def _choices(key: str, values: Any, source: str) -> list[_Choice]:
    choices = []
    if key and isinstance(values, list):
        for value in values:
            label = value.get("name", value) if isinstance(value, dict) else value
            choices.append(_Choice(str(label), key, value))
    elif isinstance(values, dict) and all(isinstance(tables, dict) for tables in values.values()):
        for label, tables in values.items():
            written = dict(tables)
            inherited = frozenset(written.pop(INHERITED, ()))
            choices.append(_Choice(label, "", written, inherited))
    if not choices:
        raise _wrong_sweep(key, values, source)
    return choices


def _wrong_sweep(key: str, values: Any, source: str) -> ConfigError:
    place = f"[sweep] {key}".rstrip()
    return ConfigError(
        f"{place}: found {values!r}; wanted a list of values by key, for example "
        '"loss.alpha" = [36, 45], or tables by name, for example [sweep.rows.sqrt]',
        source=source,
    )
