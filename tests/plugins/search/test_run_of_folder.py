"""A folder of images in place of a run."""

import shutil

import numpy as np
import pytest

from pml_ext.errors import DataError
from pml_ext_search import run_of_folder
from pml_ext_search.commands.cluster import cluster
from pml_ext_search.commands.index import index
from pml_ext_search.commands.query import query
from pml_ext_search.run_of_folder import run_of

from .photographs import photograph


class Fits:
    """A service that has one run for all folders."""

    def __init__(self, run):
        self.run = run
        self.asked = []

    def run_of_folder(self, folder, device, listener, exclude=None):
        self.asked.append(folder)
        return self.run


@pytest.fixture
def photos(tmp_path):
    place = tmp_path / "photos"
    for number in range(6):
        file = place / "inner" / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        photograph(number, side=32).convert("L").save(file)
    return place


@pytest.fixture
def fits(runs, tmp_path, monkeypatch):
    """A service in place of ``fit``'s, whose run is a copy of a trained one."""
    run = tmp_path / "run"
    shutil.copytree(runs[0], run)
    fits = Fits(run)
    monkeypatch.setattr(run_of_folder, "service", lambda name, what: fits)
    return fits


def test_only_a_folder_of_images_gets_a_run(photos, fits):
    assert run_of(photos, "cpu", None) == (fits.run, photos)
    assert run_of(fits.run, "cpu", None) == (fits.run, None)
    with pytest.raises(DataError, match="0.png: a file, not the folder of a run or of images"):
        run_of(photos / "inner" / "0.png", "cpu", None)
    assert fits.asked == [photos]


def test_a_folder_without_images_says_what_it_has(tmp_path, command):
    place = tmp_path / "empty"
    place.mkdir()
    wanted = "neither a finished run nor images; wanted the folder of a run, or of .jpg, .png, ... files"
    with pytest.raises(DataError, match=f"empty: {wanted}, and found nothing"):
        run_of(place, "cpu", None)
    (place / "notes.txt").write_text("")
    for arguments in (["index"], ["query", "x.jpg"], ["identify", "x.jpg"], ["cluster"], ["select"]):
        done = command(arguments[0], place, *arguments[1:])
        assert done.returncode == 2, arguments
        assert f"empty: {wanted}; found" in " ".join(done.stderr.split())
        assert "notes.txt: not named like an image" in " ".join(done.stderr.split())
    (place / "metrics.json").write_text("{}")  # what is left of a run
    assert run_of(place, "cpu", None) == (place, None)


def test_a_query_follows_its_folder(photos, fits, capsys):
    shown = photos / "inner" / "0.png"
    query(photos, [str(shown)], k=8, device="cpu", as_json=True)
    assert capsys.readouterr().out.count("inner/") == 5 + 1
    photograph(7, side=32).convert("L").save(photos / "7.png")
    (photos / "inner" / "5.png").unlink()
    query(photos, [str(shown)], k=8, device="cpu", as_json=True)
    told = capsys.readouterr()
    assert '"7.png"' in told.out
    assert "inner/5.png" not in told.out
    assert f"{photos}: 1 new, 0 changed, 1 gone" in told.err
    query(photos, [str(shown)], k=8, device="cpu", as_json=True)
    assert "new" not in capsys.readouterr().err


def test_index_and_clusters_are_of_the_folder(photos, fits, tmp_path, capsys):
    index(photos, device="cpu")
    assert "6 images indexed" in capsys.readouterr().out
    cluster(photos, clusters="2", out=tmp_path / "clusters", device="cpu")
    rows = (tmp_path / "clusters" / "clusters.csv").read_text().splitlines()
    assert len(rows) == 1 + 6
    assert np.unique([row.split(",")[0] for row in rows[1:]]).tolist() == [f"inner/{number}.png" for number in range(6)]


def test_a_path_to_nothing_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"nowhere: no such folder; wanted the folder of a run, or of images$"):
        run_of(tmp_path / "nowhere", "cpu", None)
