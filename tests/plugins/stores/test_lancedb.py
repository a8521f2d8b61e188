"""LanceDB: searched by the commands and by the page."""

import json
import shutil

import pytest

from pml_ext import load_run
from pml_ext.plugin import Rows, SearchFilter
from pml_ext_browse import open_collections

from .opened import opened, rows

pytest.importorskip("lancedb", reason="needs the extra lancedb")
from pml_ext_stores import lancedb

pytestmark = pytest.mark.filterwarnings("ignore::pml_ext_search.SkippedImage")


def test_commands_search_in_a_store(command, runs, folder, tmp_path):
    own = ("--store", tmp_path / "own")
    address = f"lancedb:{tmp_path / 'a lake'}"
    done = command("index", runs[0], folder, *own, "--to", address)
    assert "lancedb: 200 new, 0 changed, 0 gone, 0 as before" in done.stdout
    assert "lancedb: recall@10 1.000 of exact search" in done.stdout
    photo = folder / "3" / "0003.png"
    mine = json.loads(command("query", runs[0], photo, *own, "-k", 5, "--json").stdout)
    theirs = json.loads(command("query", runs[0], photo, "--store", address, "-k", 6, "--json").stdout)
    assert theirs[0]["paths"][0] == "3/0003.png"  # no index here says that it is the image itself
    assert theirs[0]["paths"][1:] == mine[0]["paths"]
    assert theirs[0]["picture"] is None
    empty = command("query", runs[1], photo, "--store", address)
    assert (empty.returncode, "no images of" in empty.stderr, "--to" in empty.stderr) == (2, True, True)


def test_the_page_searches_in_a_store(runs, folder, tmp_path):
    place = tmp_path / "run"
    shutil.copytree(runs[0], place, ignore=shutil.ignore_patterns("collection"))
    run = load_run(place, "cpu")
    address = f"lancedb:{tmp_path / 'lake'}"
    run.index(folder)
    run.copy_to_store(address)
    (here,) = open_collections([place], device="cpu")
    (there,) = open_collections([place], device="cpu", store=address)
    there.embeddings = here.embeddings.clone()
    assert there.nearest(7, 5) == here.nearest(7, 5)
    assert [each.number for each in there.nearest_to_file(folder / "3" / "0003.png", 5)] == [
        each.number for each in here.nearest_to_file(folder / "3" / "0003.png", 5)
    ]
    lake = there.store
    lake.delete([*lake.checksums()])
    assert there.nearest(7, 5) == []


def test_a_large_table_has_lists_that_are_extended(tmp_path, monkeypatch):
    monkeypatch.setattr(lancedb, "INDEXED", 300)
    store = opened(f"lancedb:{tmp_path / 'lake'}")
    images = rows(300)
    store.write([Rows(*(column[:290] for column in images))])
    assert not store._table.list_indices()
    store.write([Rows(*(column[290:] for column in images))])
    assert {index.columns[0] for index in store._table.list_indices()} == {"embedding", "class"}
    name = images.classes[1]
    (found,) = store.search(images.vectors[1:2], 100, SearchFilter(name))  # all images of a class, not of near lists
    assert [each.class_name for each in found] == [name] * 100
    assert found[0].id == 1
    store.write([rows(40, seed=5, first=280)])
    assert store.count() == 320
