"""Settings of a recipe by key."""

from typing import Any

Settings = dict[str, Any]  # by dotted key; the user's own take precedence
