"""Files that are replaced in one step: a reader sees the old one or the new one, never half of either."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Calls ``write(temporary_path)`` and moves the result into place.

    Args:
        path: the file to write; its folder is made, if the folder above exists.
        write: called with a path in the same folder.
    """
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes a text in UTF-8, in one step."""
    write_atomically(path, lambda temporary: temporary.write_text(text, "utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Writes a value as indented JSON, in one step."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def write_toml(path: Path, value: dict[str, Any]) -> None:
    """Writes tables as TOML, in one step."""
    import tomli_w

    write_text(path, tomli_w.dumps(value))


def toml_value(text: str) -> Any:
    """A value that somebody typed: as TOML reads it, or else the text itself.

    Args:
        text: ``0.1``, ``true``, ``[1, 2]``, ``"text"`` or ``text``.
    """
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
