"""Queries: the nearest images of an index, and what is no answer."""

import json
from pathlib import Path

import pytest
import torch
from pytorch_metric_learning.distances import LpDistance

import pml_ext
from pml_ext import load_run
from pml_ext.errors import ConfigError
from pml_ext.experiment import train
from pml_ext.retrieval import SkippedImage

from .conftest import QUICK


def test_queries_find_their_class_and_not_themselves(indexed, folder):
    run, _ = indexed
    queries = sorted(folder.glob("*/*.png"))[::20]
    queries = [query for query in queries if query.name != "broken.png"]
    answers = run.query(queries, k=5)
    assert [answer.query for answer in answers] == [str(query) for query in queries]
    right = total = 0
    for answer, query in zip(answers, queries, strict=True):
        assert len(answer.paths) == len(answer.distances) == 5
        assert answer.distances == sorted(answer.distances)
        assert query.relative_to(folder).as_posix() not in answer.paths
        assert answer.query_class == query.parent.name
        points = run.embed([query, *(folder / path for path in answer.paths)])
        expected = (points[1:] - points[0]).norm(dim=1)
        assert answer.distances == pytest.approx(expected.tolist(), abs=2e-3)
        right += sum(name == query.parent.name for name in answer.classes)
        total += 5
    assert right / total > 0.8


def test_fewer_answers_than_wanted_are_said(command, indexed, folder):
    run, gallery = indexed
    unknown = torch.zeros(1, 8, 8, dtype=torch.uint8)
    with pytest.warns(UserWarning, match=r"fewer than 1000 answers for 1 of 1 queries: the index holds 200 images"):
        (answer,) = run.query([unknown], k=1000)
    assert len(answer.paths) == 200
    assert (answer.query, answer.query_class) == ("image 0", None)
    done = command("query", run.folder, folder / gallery.embedded.paths[0], "-k", 200, "--json")
    assert (done.returncode, len(json.loads(done.stdout)[0]["paths"])) == (0, 199)
    assert "pml-ext: warning: fewer than 200 answers" in done.stderr


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"k": 0}, "-k 0"),
        ({"metric": "learned"}, "has no learned metric: its loss is batch-all-triplets"),
        ({"metric": "cosine"}, "no metric 'cosine'"),
        ({"shortlist": 5}, "--shortlist 5: wanted 1 or more, with --metric learned"),
    ],
)
def test_wrong_queries(indexed, folder, settings, text):
    with pytest.raises(ConfigError, match=text):
        indexed[0].query(folder / indexed[1].embedded.paths[0], **settings)


def test_a_query_is_known_by_any_of_its_names(indexed, folder, tmp_path, monkeypatch):
    """Relative, through a linked folder, and by a link to an image: it is never its own answer."""
    run, gallery = indexed
    itself = gallery.embedded.paths[30]
    (tmp_path / "linked").symlink_to(folder)
    (tmp_path / "photo.png").symlink_to(folder / itself)
    monkeypatch.chdir(folder.parent)
    names = [
        folder / itself,
        Path(folder.name) / itself,
        tmp_path / "linked" / itself,
        tmp_path / "photo.png",
        folder / "0" / ".." / itself,
    ]
    for answer in run.query(names, 5):
        assert itself not in answer.paths, answer.query
        assert answer.query_class == itself[0]
    (tmp_path / "copy.png").write_bytes((folder / itself).read_bytes())
    (copy,) = run.query(tmp_path / "copy.png", 5)
    assert (copy.paths[0], copy.query_class) == (itself, None)


@pytest.mark.usefixtures("without_report")
def test_by_a_learned_metric(tmp_path, folder):
    class Learned(pml_ext.BatchAllTripletLoss):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.metric = LpDistance(p=1, normalize_embeddings=False)

    pml_ext.register(Learned, name="learned-metric")
    try:
        overrides = (*QUICK, "loss.name=learned-metric")
        train("triplets/digits", out=tmp_path / "run", overrides=overrides, device="cpu")
        run = load_run(tmp_path / "run", "cpu")
        with pytest.warns(SkippedImage):
            gallery = run.index(folder)
        query = folder / gallery.embedded.paths[7]
        exact = run.query(query, 5, metric="learned")[0]
        points = gallery.embedded.embeddings
        expected = (points - points[7]).abs().sum(1)
        expected[7] = torch.inf
        assert exact.paths == [gallery.embedded.paths[index] for index in expected.argsort()[:5]]
        assert run.query(query, 5, metric="learned", shortlist=200)[0].paths == exact.paths
        assert run.query(query, 5, metric="learned", shortlist=1)[0].paths[0] in run.query(query, 6)[0].paths
        with pytest.raises(ConfigError, match="--shortlist 0"):
            run.query(query, 5, metric="learned", shortlist=0)
        run.index(folder, "IVF20,Flat")  # the shortlist of an index by faiss is its own
        near = run.query(query, 6)[0].paths
        assert set(run.query(query, 6, metric="learned", shortlist=7)[0].paths) == set(near)
        assert run.query(query, 5, metric="learned")[0].paths == exact.paths
    finally:
        pml_ext.registry.unregister_local()
