"""Stores that are searched in place of the index, and what is said without the plugin that opens them."""

import numpy as np
import pytest
import torch

from pml_ext.errors import ConfigError
from pml_ext.plugin import SearchFilter, SearchResult
from pml_ext_search.query.query import QueryOptions
from pml_ext_search.query.stored import answers_from, is_store

POINTS = torch.nn.functional.normalize(torch.randn(30, 6, generator=torch.Generator().manual_seed(0)))


class Searched:
    """A store of the points that searches all of them."""

    def search(self, vectors, k, where):
        answers = []
        for vector in vectors:
            found = []
            for number, point in enumerate(POINTS.numpy()):
                name = str(number % 3)
                if where.within in (None, name):
                    distance = float(np.linalg.norm(vector - point))
                    found.append(SearchResult(number, f"{name}/{number:02d}.png", name, distance))
            answers.append(sorted(found, key=lambda result: result.distance)[:k])
        return answers


def test_answers_are_those_of_the_filter():
    options = QueryOptions(k=3, where=SearchFilter(within="1"))
    (answer,) = answers_from(Searched(), None, ["a.png"], POINTS[:1], options)
    assert answer.classes == ["1"] * 3
    assert answer.distances == sorted(answer.distances)
    with pytest.raises(ConfigError, match="--within 7: no image of this class in the store"):
        answers_from(Searched(), None, ["a.png"], POINTS[:1], QueryOptions(k=3, where=SearchFilter(within="7")))


def test_a_store_address_has_a_scheme(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lancedb:mine").mkdir()
    found = [is_store(text) for text in ("lancedb:other", "lancedb:mine", "folder", "C:/photos", "pgvector:")]
    assert found == [True, False, False, False, False]


def test_without_the_plugin_of_stores_the_rest_runs(command, runs, folder, tmp_path, block):
    block("stores")
    own = ("--store", tmp_path / "own")
    told = command("index", runs[0], folder, *own, "--to", f"lancedb:{tmp_path}/secret")
    assert told.returncode == 2
    wanted = "the store lancedb:... needs the plugin 'stores', which is blocked (by PML_EXT_BLOCK)"
    assert wanted in told.stderr
    assert "secret" not in told.stderr
    assert command("index", runs[0], folder, *own).returncode == 0
    photo = folder / "3" / "0003.png"
    assert command("query", runs[0], photo, *own, "--json").returncode == 0
    told = command("query", runs[0], photo, "--store", f"lancedb:{tmp_path}/secret")
    assert (told.returncode, wanted in told.stderr) == (2, True)
