"""The searchable index: exact distances, and an index that is made anew."""

import shutil

import pytest
import torch

from pml_ext import load_run
from pml_ext.plugin import SearchFilter
from pml_ext_search.query.query import QueryOptions

from ..conftest import made_up


def test_a_collection_made_anew_is_reopened(make):
    """Its version begins at 1 again, as that of the collection that is open."""
    points = torch.nn.functional.normalize(torch.randn(30, 64, generator=torch.Generator().manual_seed(0)))
    run = make("anew")
    gallery = made_up(run, points)
    options = QueryOptions(k=2)
    assert gallery.answer([""], points[5:6], options)[0].paths[0] == "00005.png"
    shutil.rmtree(run.collection.place)
    made_up(load_run(run.folder, "cpu", store=run.collection.place), points.flip(0))
    assert gallery.answer([""], points[5:6], options)[0].paths[0] == "00024.png"


@pytest.mark.parametrize("factory", ["", "IVF4,PQ8x4"])
def test_distances_are_those_of_the_embeddings(make, factory):
    """faiss has others, of codes."""
    points = torch.nn.functional.normalize(torch.randn(400, 64, generator=torch.Generator().manual_seed(0)))
    points[200:] = points[:200]
    gallery = made_up(make(f"exact {factory}"), points, factory)
    answers = gallery.answer([""] * 30, points[:30], QueryOptions(k=8, where=SearchFilter(radius=1e-4)))
    places = {path: number for number, path in enumerate(gallery.embedded.paths)}
    embedded = gallery.embedded.embeddings
    for number, answer in enumerate(answers):
        assert f"{number:05d}.png" in answer.paths
        wanted = [(embedded[places[path]] - points[number]).norm().item() for path in answer.paths]
        assert answer.distances == pytest.approx(wanted, abs=1e-6)
    if not factory:
        assert all(len(answer.paths) == 2 for answer in answers)
