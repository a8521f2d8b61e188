"""Overrides as texts, for tests that also type them behind ``--set``."""

from collections.abc import Iterable

from pml_ext_train.recipe import Override, parse_override


def typed(texts: Iterable[str | Override]) -> list[Override]:
    """Return what the command line makes of ``--set KEY=VALUE``, given once for each text."""
    return [parse_override(text) if isinstance(text, str) else text for text in texts]
