"""Embeddings of other processes are added to the collection, and nothing is embedded."""

import json

import numpy as np
import pytest

from pml_ext.errors import ConfigError

reading = pytest.importorskip("pml_ext_parts.reading", reason="needs the extra parquet", exc_type=ImportError)
pytestmark = pytest.mark.filterwarnings("ignore::pml_ext_search.SkippedImage")


def test_index_takes_parts_up_without_embedding(make, folder, whole, monkeypatch, few, command, runs, tmp_path):
    run = make("from parts")
    monkeypatch.setattr(run.images.computed, "forward", None)
    assert len(run.write_index(whole)) == 200
    assert run.write_index(whole).changes == (0, 0, 0, 200)
    monkeypatch.undo()
    own = make("own").index(folder)
    assert np.array_equal(own.embedded.embeddings.numpy(), run.gallery().embedded.embeddings.numpy())
    assert list(run.gallery().embedded.paths) == list(own.embedded.paths)
    told = command("index", runs[0], "--from", whole, "--store", tmp_path / "told", "--json")
    assert json.loads(told.stdout)["images"] == 200


def test_embeddings_of_an_address_need_a_folder(make, whole, tmp_path, monkeypatch):
    run = make("of an address")
    about = reading.about
    monkeypatch.setattr(reading, "about", lambda file: about(file) | {"folder": "s3://bucket/photos"})
    with pytest.raises(ConfigError, match=r"the images are of s3://bucket/photos; type: pml-ext index RUN FOLDER"):
        run.write_index(whole)
    assert len(run.write_index(whole, tmp_path)) == 200
