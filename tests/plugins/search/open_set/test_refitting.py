"""Heads in closed form, fitted again to the features of indexed images and of vectors."""

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from pml_ext import load_run
from pml_ext_search.open_set.refitting import refit_of
from pml_ext_train.launch.launch import train

from ....overrides import typed


@pytest.fixture(scope="module")
def vectors_run(tmp_path_factory):
    """A run of whitening within classes, on vectors of 20 classes, and its file of vectors, in another order."""
    place = tmp_path_factory.mktemp("refitting")
    generator = np.random.default_rng(0)
    labels = np.arange(100) % 20
    features = generator.normal(size=(20, 8))[labels] + generator.normal(size=(100, 8)) * 0.3
    order = generator.permutation(100)
    ids = np.array([f"item {number:02d}" for number in range(100)])
    names = np.array([f"seal {label:02d}" for label in labels])
    split = np.where(labels < 14, "train", "test")
    np.savez(place / "all.npz", embeddings=features.astype(np.float32), labels=names, ids=ids, split=split)
    known = order[labels[order] < 14]
    np.savez(place / "known.npz", embeddings=features[known].astype(np.float32), labels=names[known], ids=ids[known])
    settings = [f"data.name=vectors:{place / 'all.npz'}", "model.embedder=within-class", "model.embedding_size=8"]
    settings += ["sampler.batch_size=56", "schedule.epochs=1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pml_ext_train.results.finish.write_run_report", lambda *_: None)
        train("fit/vectors", out=place / "run", overrides=typed(settings), device="cpu")
    return place


@pytest.mark.parametrize("size", [None, 3])
def test_a_head_of_all_items_is_the_runs(vectors_run, tmp_path, size):
    run = load_run(vectors_run / "run", "cpu", store=tmp_path / "store", size=size)
    run.index(vectors_run / "known.npz")
    embedded = run.indexed_images()
    refit = refit_of(run.search_index, run.recipe)
    features = refit.features()
    labels = np.unique(embedded.classes, return_inverse=True)[1]
    with torch.no_grad():
        found = normalize(refit.fit(features, labels)(features))
    assert found.shape[1] == (size or 8)
    torch.testing.assert_close(found, embedded.embeddings, atol=1e-4, rtol=0)
    with pytest.warns(UserWarning, match="left out in 7 folds, each with a refitted head"):
        run.calibrate(0.1)
    (answer, *_) = run.identify(features[:2].numpy(), radius=2)
    assert answer.name == embedded.classes[0]


def test_a_trained_head_is_not_fitted_again(runs):
    run = load_run(runs[0], "cpu")
    assert refit_of(run.search_index, run.recipe) is None
