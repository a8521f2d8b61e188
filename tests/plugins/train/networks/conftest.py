"""The cache of the tests of this folder."""

from ..training.conftest import own_cache  # noqa: F401 (a fixture)
