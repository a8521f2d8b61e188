"""Queries that are ranked again, in the index."""

import json

import pytest
import torch

from pml_ext.errors import ConfigError
from pml_ext.evaluation import KReciprocal, NearestNeighbors, QueryExpansion, nearest_of
from pml_ext_search.query.reranking import RERANKINGS, reranked, reranking_of

POINTS = torch.nn.functional.normalize(torch.randn(40, 5, generator=torch.Generator().manual_seed(0)))


def without(indices, own):
    return [index for index in indices if index != own and index >= 0]


@pytest.mark.parametrize("name", RERANKINGS)
@pytest.mark.parametrize("inside", [True, False])
def test_answers_equal_the_calculators_ranking(name, inside):
    """A query of the index is left out of all neighborhoods, as if it were not there."""
    vectors = POINTS[:30]
    queries = torch.arange(3) + (5 if inside else 30)
    own = queries if inside else torch.full((3,), -1)
    _, places = reranked(RERANKINGS[name], nearest_of, POINTS[queries], 20, vectors, own)
    for query, row, itself in zip(queries.tolist(), places.tolist(), own.tolist(), strict=True):
        rest = [index for index in range(30) if index != itself]
        find = RERANKINGS[name].finder(POINTS[query, None], POINTS[rest], False, None, NearestNeighbors(nearest_of))
        expected = [rest[index] for index in find(torch.tensor([0]), 20)[1][0].tolist()]
        found = without(row, itself)
        assert found == expected[: len(found)]
        assert len(found) >= 19


def test_missing_places_are_no_neighbors():
    def search(points, k, vectors):
        distances, indices = nearest_of(points, k, vectors)
        return distances, indices.where(torch.arange(k) < 4, -1)

    _, places = reranked(KReciprocal(3, 2), search, POINTS[:1], 6, POINTS, torch.tensor([0]))
    assert (places[0] >= 0).sum() == 3
    _, places = reranked(QueryExpansion(10), search, POINTS[:1], 6, POINTS, torch.tensor([0]))
    near = nearest_of(POINTS[:1], 4, POINTS)[1][0]
    expanded = torch.nn.functional.normalize(POINTS[near].sum(0, keepdim=True))
    assert places.tolist() == search(expanded, 6, POINTS)[1].tolist()


@pytest.mark.parametrize("name", RERANKINGS)
def test_from_python_and_the_command_line(command, indexed, folder, name):
    run, gallery = indexed
    image = folder / gallery.embedded.paths[0]
    (answer,) = run.query(image, 5, rerank=name)
    assert len(answer.paths) == 5
    assert gallery.embedded.paths[0] not in answer.paths
    points = gallery.embedded.embeddings
    _, places = reranked(RERANKINGS[name], nearest_of, points[:1], 6, points, torch.tensor([0]))
    assert answer.paths == [gallery.embedded.paths[index] for index in without(places[0].tolist(), 0)][:5]
    done = command("query", run.folder, image, "-k", 5, "--rerank", name, "--json")
    assert json.loads(done.stdout)[0]["paths"] == answer.paths


def test_reranking_options_that_do_not_fit(indexed, folder):
    run, gallery = indexed
    image = folder / gallery.embedded.paths[0]
    with pytest.raises(ConfigError, match="--rerank no re-ranking 'alfa'.*alpha"):
        run.query(image, rerank="alfa")
    with pytest.raises(ConfigError, match="leave out --store, --metric and --radius"):
        run.query(image, rerank="alpha", radius=0.5)
    assert reranking_of(RERANKINGS["alpha"]) is RERANKINGS["alpha"]
