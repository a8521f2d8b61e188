"""Two trained runs and a folder of photographs."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from pml_ext_search.browse import open_collections

from ..conftest import write_digits

SECRET = (1, 254, 3)  # the color of an image outside the folder


@pytest.fixture(scope="session")
def trained(runs, tmp_path_factory):
    """Two runs, trained on the digits 0 to 9, with collections of their own."""
    place = tmp_path_factory.mktemp("browse") / "runs"
    return shutil.copytree(runs[0].parent, place, ignore=shutil.ignore_patterns("collection", "query.png"))


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    """200 digits, a sub-folder for each class; the ones are renamed, so that training knows no class of that name."""
    place = tmp_path_factory.mktemp("photos")
    write_digits(place, range(200))
    return (place / "1").rename(place / "price $5_$6").parent


@pytest.fixture(scope="session")
def pair(trained, photos):
    """The collections of both runs."""
    return open_collections([trained / "one", trained / "other"], photos, "cpu", lambda _: None)


@pytest.fixture
def few(tmp_path, trained, photos):
    """A run, 20 photographs of two classes, and an image outside their folder."""
    shutil.copytree(trained / "one", tmp_path / "run", ignore=shutil.ignore_patterns("records", "collection", "browse"))
    for name in ("0", "2"):
        (tmp_path / "few" / name).mkdir(parents=True)
        for file in sorted((photos / name).iterdir())[:10]:
            shutil.copy(file, tmp_path / "few" / name)
    Image.new("RGB", (8, 8), SECRET).save(tmp_path / "secret.png")
    return SimpleNamespace(
        run=tmp_path / "run", photos=tmp_path / "few", secret=tmp_path / "secret.png", place=Path(tmp_path)
    )
