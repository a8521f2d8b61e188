"""The cache of the tests of this folder, photographs, and the folder of a run."""

import pytest

from pml_ext_fit import selection
from pml_ext_fit.images import describe_images

from ..train.conftest import own_cache  # noqa: F401 (a fixture)
from ..train.training.made_up_photos import write_photos


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder of 24 classes of six photographs, each of a color with noise."""
    place = tmp_path_factory.mktemp("photos")
    write_photos(place, classes=24, each=6)
    return place


@pytest.fixture(scope="module")
def images(photos):
    """The photographs as a fit describes them."""
    return describe_images(photos)


@pytest.fixture
def weights():
    """Skip a test where the weights of the recipes' trunk are not installed."""
    if selection.why_not():
        pytest.skip("the extra photos is not installed, whose trunk the recipes name")


@pytest.fixture
def out(tmp_path):
    """The folder of a run."""
    return tmp_path / "run"
