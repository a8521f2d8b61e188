"""Parts that workers of Ray embed."""

import json
import os
import signal

import pytest

from pml_ext import load_run

pyarrow = pytest.importorskip("pyarrow", reason="needs the extra parquet")
parquet = pytest.importorskip("pyarrow.parquet")
pytestmark = pytest.mark.filterwarnings("ignore::pml_ext_search.SkippedImage")


def rows_of(place):
    table = pyarrow.concat_tables([parquet.read_table(file) for file in sorted(place.glob("*.parquet"))])
    return table.select(["path", "class", "embedding"]).to_pydict()


@pytest.fixture(scope="module")
def whole(runs, folder, tmp_path_factory):
    return load_run(runs[0], "cpu").embed_part(folder, out=tmp_path_factory.mktemp("whole") / "parts")


def test_ray_writes_the_same_files_and_one_worker_may_die(make, runs, folder, tmp_path, whole, command, monkeypatch):
    pytest.importorskip("ray.data", reason="needs the extra ray")
    from pml_ext_search import on_ray

    monkeypatch.setenv("KILLED_ONCE", str(tmp_path / "killed"))
    monkeypatch.setattr(on_ray, "Embedder", Dying)
    done = command("embed", runs[0], folder, "--on", "ray", "-o", tmp_path / "parts", "--json")
    assert (tmp_path / "killed").exists()
    assert json.loads(done.stdout)["new"] == 200, done.stderr
    assert rows_of(tmp_path / "parts") == rows_of(whole)
    for name in ("broken.png", "notes.txt"):
        assert name in done.stderr


class Dying:
    """A worker that is killed at its second segment, once."""

    def __init__(self, *arguments):
        from pml_ext_search.on_ray import Embedder

        self.embedder = Embedder(*arguments)

    def __call__(self, row):
        if row["number"] == 1:
            try:
                os.close(os.open(os.environ["KILLED_ONCE"], os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), signal.SIGKILL)
            except FileExistsError:
                pass
        return self.embedder(row)
