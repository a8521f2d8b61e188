"""The cache of the tests of this folder, and photographs."""

import pytest

from ..train.conftest import own_cache  # noqa: F401 (a fixture)
from ..train.training.made_up_photos import write_photos


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder of 24 classes of six photographs, each of a color with noise."""
    place = tmp_path_factory.mktemp("photos")
    write_photos(place, classes=24, each=6)
    return place
