"""A collection of the trunk's features before the head: made, updated, queried, clustered, and never mixed."""

import json
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from pml_ext import load_run
from pml_ext.errors import ConfigError
from pml_ext_search.embedding.embedding import SkippedImage
from pml_ext_train.launch.launch import train

from ...overrides import typed
from .conftest import empty, garbage

MIXED = r"has the features of images, not their embeddings; leave out --by, type --store FOLDER"


@pytest.fixture(scope="module")
def indexed_run(few, tmp_path_factory):
    """A run with fewer dimensions than features, whose collection has the features of a folder."""
    place = tmp_path_factory.mktemp("by features") / "run"
    quick = ("schedule.epochs=3", "schedule.milestones=[2]", "sampler.iterations=2", "model.embedding_size=16")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pml_ext_train.results.finish.write_run_report", lambda *_: None)
        train("triplets/digits", out=place, overrides=typed([*quick, "model.trunk.width=8"]), device="cpu")
    with warnings.catch_warnings(action="ignore", category=SkippedImage):
        load_run(place, "cpu", by="features").index(few[0])
    return place


def test_vectors_are_the_normalized_features(indexed_run, few):
    run = load_run(indexed_run, "cpu")
    assert (run.by, run.gallery().by) == ("features", "features")
    embedded = run.gallery().embedded
    images = torch.stack([run.images.computed.prepared(few[0] / path) for path in embedded.paths])
    with torch.no_grad():
        expected = nn.functional.normalize(run.network.trunk(images))
    assert expected.shape[1] == run.network.features != run.network.embedding_size
    torch.testing.assert_close(embedded.embeddings, expected, rtol=0, atol=1e-5)


def test_commands_follow_the_collections_kind(indexed_run, few, tmp_path, command):
    photo = next(few[1].glob("*/*.png"))
    answers = json.loads(command("query", indexed_run, photo, "-k", 3, "--json").stdout)
    run = load_run(indexed_run, "cpu")
    assert answers[0]["paths"] == run.query(photo, k=3)[0].paths
    difference = run.embed(photo) - run.embed(few[0] / answers[0]["paths"][0])
    assert float(difference.norm()) == pytest.approx(answers[0]["distances"][0], abs=1e-5)
    about = json.loads(command("index", indexed_run, "--json").stdout)
    assert (about["by"], about["new"], about["as_before"]) == ("features", 0, 20)
    told = command("index", indexed_run, "--by", "features").stdout
    assert told.startswith("20 images indexed by the features before the head: ")
    assert command("index", indexed_run, "--check").returncode == 0
    done = command("cluster", indexed_run, few[0], "--clusters", 2, "-o", tmp_path / "clusters")
    assert done.returncode == 0, done.stderr


def test_a_mixed_use_names_the_remedy(indexed_run, few, command, tmp_path):
    photo = next(few[1].glob("*/*.png"))
    for arguments in (
        ("query", indexed_run, photo),
        ("index", indexed_run, few[0]),
        ("index", indexed_run, "--check"),
        ("cluster", indexed_run, few[0], "--clusters", 2),
        ("embed", indexed_run, few[0], "-o", tmp_path / "all.npz"),
    ):
        done = command(*arguments, "--by", "embeddings")
        assert done.returncode == 2, arguments
        assert "has the features of images, not their embeddings; leave out --by" in done.stderr
        assert done.stderr.count("\n") == 1
    with pytest.raises(ConfigError, match=MIXED):
        load_run(indexed_run, "cpu", by="embeddings").embed([photo])
    assert len(load_run(indexed_run, "cpu").gallery()) == 20  # it is as it was


@pytest.mark.parametrize("damage", [empty, garbage, Path.unlink])
@pytest.mark.parametrize("kind", [("--by", "features"), ("--size", 5)])
def test_a_damaged_collection_stays_of_its_kind(few, indexed_run, tmp_path, command, damage, kind):
    store = ("--store", tmp_path / "store")
    before = json.loads(command("index", indexed_run, few[0], *kind, *store, "--json").stdout)
    damage(tmp_path / "store" / "images.sqlite")
    done = command("query", indexed_run, next(few[1].glob("*/*.png")), *store)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(f" {kind[0]} {kind[1]}\n")
    about = json.loads(command("index", indexed_run, few[0], "--json", *store).stdout)
    assert (about["by"], about["size"]) == (before["by"], before["size"])


def test_parts_of_features_are_not_indexed_as_embeddings(indexed_run, few, tmp_path, command):
    pytest.importorskip("pyarrow", reason="the extra [parquet] is not installed")
    refused = command("query", indexed_run, few[1], "-o", tmp_path / "answers.jsonl", "--by", "embeddings")
    assert "not their embeddings; leave out --by" in refused.stderr
    parts = tmp_path / "parts"
    assert command("embed", indexed_run, few[0], "--part", "1/1", "-o", parts, "--by", "features").returncode == 0
    store = ("--store", tmp_path / "store")
    refused = command("index", indexed_run, "--from", parts, "--by", "embeddings", *store)
    assert refused.returncode == 2
    assert refused.stderr.endswith("the features of images, not their embeddings; type --by features\n")
    done = command("index", indexed_run, "--from", parts, "--by", "features", *store)
    assert done.returncode == 0, done.stderr
    run = load_run(indexed_run, "cpu", store=tmp_path / "store")
    assert run.gallery().embedded.embeddings.shape[1] == run.network.features
