"""Overrides of a recipe's settings."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from pml_ext.errors import ConfigError, PmlExtError, shortened

from ..files import toml_value
from .tables import ABOUT_KEYS, flat, inside, overridden

# A key of a hundred parts. The parts do not backtrack ("++"), so that a long text is searched in linear time.
DEEP_KEY = re.compile(r"""(?<![\w"'-])(?:[\w"'-]++[ \t]*\.[ \t]*){100}""")


@dataclass(frozen=True)
class Override:
    """A value that replaces a recipe's own.

    Args:
        key: dotted, for example ``"loss.margin"``.
        value: a mapping is merged over the recipe's table.
        option: what was typed, for errors; may be empty.
    """

    key: str
    value: Any
    option: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.key, str) or not self.key:
            raise ConfigError(f'overrides: found the key {self.key!r}; wanted one such as "loss.margin"')

    def __str__(self) -> str:
        """Return the option, or key and value, for errors."""
        return self.option or f"override {self.key}={self.value}"

    @property
    def sets_unnamed_key(self) -> bool:
        """Whether the option does not name the key, as ``--quick``."""
        return bool(self.option) and self.key not in self.option

    def check_value(self, tables: Mapping[str, Any]) -> None:
        """Raise ConfigError for a text in place of a table."""
        if isinstance(tables.get(self.key), dict) and isinstance(self.value, str):
            name = f"{self.key}.name={self.value}"
            advice = f"type --set {name}" if self.option else f"wanted {name}"
            raise ConfigError(f"{self.key} is a table; {advice}", option=str(self))


# What Python callers give is a mapping; the command line gives what it has parsed.
Overrides: TypeAlias = Mapping[str, Any] | Iterable[Override]


def parse_override(text: str, option: str = "--set") -> Override:
    """Return the override ``KEY=VALUE``; the value is TOML, or else text."""
    key, separator, value = text.partition("=")
    key = key.strip()
    if not separator or not key:
        raise ConfigError(f"{option} {text[:200]}: wanted KEY=VALUE, for example loss.name=pml/contrastive")
    if DEEP_KEY.search(text):
        raise ConfigError(shortened(f"{option} {text[:100]}...: nested too deep; wanted a key of few parts"))
    typed = f"{option} {text}" if option else text
    return Override(key, toml_value(value.strip(), f"{option} ..."), typed)


def overrides_of(given: Overrides) -> list[Override]:
    """Return a list of overrides, also from a mapping such as ``{"loss.margin": 0.1}``."""
    if isinstance(given, Mapping):
        return [Override(key, value) for key, value in given.items()]
    found = [given] if isinstance(given, str) else list(given)
    for each in found:
        if not isinstance(each, Override):
            raise ConfigError(f'overrides: found {each!r}; wanted values by key, such as {{"loss.margin": 0.1}}')
    return found


def tables_of(given: Overrides) -> dict[str, Any]:
    """Return the tables that overrides set."""
    return overridden({}, [(each.key, each.value) for each in overrides_of(given)])


def dropped_by(overrides: Iterable[Override], before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return a line for each typed override that drops settings by a new name."""
    left = flat(after)
    kept = {*left, *(f"{key}.name" for key in left)}  # a name may stand for its table
    lost = [key for key in flat(before) if key not in kept and not inside(key, ABOUT_KEYS)]
    lines = []
    for override in overrides:
        table = override.key.removesuffix(".name")
        mine = [key for key in lost if inside(key, [table])]
        if override.option and mine:
            lines.append(f"{override} leaves out the recipe's {', '.join(mine)}")
    return lines


def culprit(error: PmlExtError, overrides: Iterable[Override], load: Callable[[list[Override]], Any]) -> str:
    """Return the typed override that causes an error; empty if the recipe itself is wrong.

    It sets the error's key, or is the first with which ``load`` raises the error.
    """
    given = [*{each.key: each for each in overrides}.values()]  # of several for a key, the last holds
    named = [each for each in given if inside(error.key, [each.key]) and not each.sets_unnamed_key]
    if named:
        return shortened(str(named[-1]), 200)
    for count in range(len(given) + 1):
        try:
            load(given[:count])
        except PmlExtError as found:
            if type(found) is type(error) and found.key == error.key:
                return shortened(str(given[count - 1]), 200) if count else ""
    within = [each for each in given if inside(each.key, [error.key])]  # an error that only the data show
    return shortened(str(within[-1]), 200) if within else ""
