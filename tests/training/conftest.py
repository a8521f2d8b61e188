"""The cache of the tests of this folder."""

import pytest

from ..plugins.search.conftest import folder  # noqa: F401 (a fixture)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
