"""Parts that workers of Ray embed."""

import json
import os
import signal

import pytest

from .rows import rows_of

pytest.importorskip("pyarrow", reason="needs the extra parquet")
pytestmark = pytest.mark.filterwarnings("ignore::pml_ext_search.SkippedImage")


@pytest.mark.nightly
def test_ray_with_a_dying_worker_writes_equal_files(runs, folder, tmp_path, whole, command, monkeypatch):
    pytest.importorskip("ray.data", reason="needs the extra ray")
    from pml_ext_parts import on_ray

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
        from pml_ext_parts.on_ray import Embedder

        self.embedder = Embedder(*arguments)

    def __call__(self, row):
        if row["number"] == 1:
            try:
                os.close(os.open(os.environ["KILLED_ONCE"], os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), signal.SIGKILL)
            except FileExistsError:
                pass
        return self.embedder(row)
