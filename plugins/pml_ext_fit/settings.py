"""Settings of a recipe by key: those that fit somebody's data, and those of the command line, which go over them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pml_ext.tool import overridden, toml_value

Settings = dict[str, Any]  # by dotted key


def as_overrides(settings: Mapping[str, Any]) -> list[str]:
    """Return settings as overrides of a recipe."""
    return [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in settings.items()]


def key_of(override: str) -> str:
    """Return the key that an override sets."""
    return override.partition("=")[0].strip()


def tables_of(overrides: Iterable[str]) -> dict[str, Any]:
    """Return the tables that overrides set."""
    settings = []
    for override in overrides:
        key, _, text = override.partition("=")
        settings.append((key.strip(), toml_value(text.strip(), "--set ...")))
    return overridden({}, settings)
