"""Settings of a recipe by key, as they fit somebody's data; those of the command line go over them."""

from __future__ import annotations

from typing import Any

Settings = dict[str, Any]  # by dotted key
