"""The finished run of the tests of training."""

from ..plugins.train.conftest import finished  # noqa: F401 (a fixture)
