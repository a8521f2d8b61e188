"""The parts of a folder, with a trained run and images from the tests of search."""

import pytest

from pml_ext import load_run

from ..search.conftest import command, few, folder, make  # noqa: F401 (fixtures)


@pytest.fixture(scope="session")
def whole(runs, folder, tmp_path_factory):  # noqa: F811 (a fixture)
    return load_run(runs[0], "cpu").embed_part(folder, out=tmp_path_factory.mktemp("whole") / "parts")
