"""Kept features of a run's splits: computed once, shared by seeds, and of several views."""

import numpy as np
import pytest
import torch

from pml_ext_train.training.batches import epoch_batches
from pml_ext_train.training.feature_reader import FeatureReader
from pml_ext_train.training.features import Features

from .built_runs import built
from .short_runs import finished


@pytest.mark.usefixtures("without_report")
def test_kept_views_are_reproducible_and_differ(tmp_path):
    first, metrics = finished(tmp_path / "a", "model.freeze=trunk", "model.views=4")
    again, same = finished(tmp_path / "b", "model.freeze=trunk", "model.views=4")
    plain, _ = finished(tmp_path / "c", "model.freeze=trunk")
    assert torch.equal(first["embedder"]["weight"], again["embedder"]["weight"])
    assert metrics["after"] == same["after"]
    assert not torch.equal(first["embedder"]["weight"], plain["embedder"]["weight"])


def test_frozen_views_are_computed_before_training(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    frozen = ["model.freeze=trunk", "model.trunk.weights=random", "model.views=2"]
    run = built(tmp_path / "run", *frozen, "data.augment.transforms=[{name='RandomRotation', degrees=15}]")
    run.inputs.compute_views()
    monkeypatch.setattr("pml_ext_train.training.features.FeatureCache.of", None)
    assert len(run.inputs.reader_of(run.stages[0]).views) == 2


@pytest.mark.parametrize("kept", [2, 3, 5])
def test_of_kept_views_a_batch_has_different_ones(kept):
    features = [Features.of_vectors(torch.full((4, 1), float(number))) for number in range(kept)]
    reader = FeatureReader(features, np.arange(4), torch.device("cpu"))
    rows = torch.cat([batch.images for batch in reader.read(epoch_batches([[0, 1, 2, 3]] * 50, 0, 1, views=2))])
    assert (rows[::2] != rows[1::2]).all()
    assert set(rows.flatten().tolist()) == set(range(kept))
