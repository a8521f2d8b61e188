"""Settings of a recipe by key."""

from __future__ import annotations

from typing import Any

Settings = dict[str, Any]  # by dotted key; the user's own take precedence
