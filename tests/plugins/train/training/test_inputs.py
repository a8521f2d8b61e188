"""What a run trains on."""

from .built_runs import built


def test_frozen_views_are_computed_before_training(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    frozen = ["model.freeze=trunk", "model.trunk.weights=random", "model.views=2"]
    run = built(tmp_path / "run", *frozen, "data.augment.transforms=[{name='RandomRotation', degrees=15}]")
    run.inputs.compute_views()
    monkeypatch.setattr("pml_ext_train.training.features.FeatureCache.of", None)
    assert len(run.inputs.reader_of(run.stages[0]).views) == 2
