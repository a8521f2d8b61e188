"""Pytest fixtures: ``pytest_plugins = ["pml_ext.testing.fixtures"]`` in ``conftest.py``."""

from collections.abc import Iterator
from types import ModuleType

from .. import registry
from ..errors import needs_extra

with needs_extra("dev", "a pytest fixture"):
    import pytest


@pytest.fixture
def isolated_registry() -> Iterator[ModuleType]:
    """Yield :mod:`pml_ext.registry` with entry points read anew, restored afterwards."""
    with registry.isolated():
        yield registry
