"""Fixtures for the tests of plugins: ``pytest_plugins = ["pml_ext.testing.fixtures"]`` in ``conftest.py``."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

from .. import registry
from ..errors import needs_extra

with needs_extra("dev", "a pytest fixture"):
    import pytest


@pytest.fixture
def isolated_registry() -> Iterator[ModuleType]:
    """:mod:`pml_ext.registry`, whose entry points are read anew and which forgets afterwards what a test adds."""
    with registry.isolated():
        yield registry
