"""The cache of the tests of this folder, and a finished run."""

import pytest

from ..search.conftest import folder  # noqa: F401 (a fixture)
from .training.whole_runs import quick


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def finished(make_once, tmp_path_factory):
    """The folder of a short run on digits with its report, which tests leave as it is, and its metrics."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return make_once("finished-run", quick)


@pytest.fixture
def numbers_of_equal_width(monkeypatch):
    """TensorBoard reads files of one second by name, and writer 10 of a process before writer 9."""
    from tensorboard.summary.writer import event_file_writer

    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(1000))
