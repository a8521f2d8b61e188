"""The command line, an index and blocked plugins, as in the tests of search; and a folder of copies."""

import pytest

from ..search.conftest import block, command, few, make
from ..search.photographs import write_copies

__all__ = ["block", "command", "few", "make", "photos"]


@pytest.fixture
def photos(tmp_path):
    """A folder with three photographs in eight versions each."""
    for number in range(3):
        write_copies(tmp_path / "photos", number)
    return tmp_path / "photos"
