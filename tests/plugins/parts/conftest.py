"""The parts of a folder, with a trained run and images from the tests of search."""

from ..search.conftest import command, few, folder, make, whole  # noqa: F401 (fixtures)
