"""Metrics of a run: groups of queries, verification, halves of classes, and tests beside training."""

import math
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext.errors import ConfigError, DataError
from pml_ext.evaluation import pairs_of_classes, verify
from pml_ext.pml import LpDistance
from pml_ext_train.recipe import load_recipe
from pml_ext_train.results.finish import finish
from pml_ext_train.training import Run, evaluate_split, nearest, train_run
from pml_ext_train.training.checks import check_validation
from pml_ext_train.training.protocols import first_halves
from pml_ext_train.training.validation import validate

from ....overrides import typed
from .whole_runs import built


def test_a_run_leaves_out_a_querys_group(tmp_path):
    """Every image has a copy in its sequence: with the column, copies are not found."""
    generator = np.random.default_rng(0)
    for number in range(24):
        pixels = generator.integers(0, 255, (18, 18, 3)).astype(np.uint8)
        for copy in "ab":
            Image.fromarray(pixels).save(tmp_path / f"{number}{copy}.png")
    found = {}
    for column in ("none", "sequence"):
        lines = [f"label,path,split,{column}"]
        for number in range(24):
            part = "train" if number < 8 else "validation"
            lines += [f"{number % 4 + 4 * (number < 8)},{number}{copy}.png,{part},{number}" for copy in "ab"]
        (tmp_path / f"{column}.csv").write_text("\n".join(lines))
        settings = (
            "data.image_size=16",
            "model.trunk={name='convnet', blocks=2, width=4}",
            "model.embedding_size=8",
            "sampler.batch_size=8",
        )
        data = f"data.name=table:{tmp_path / column}.csv"
        run = Run(load_recipe("fit/photographs", typed([data, *settings])), column, tmp_path / column)
        found[column] = nearest(run, run.queries)
    assert found["none"].accuracies["recall_at_1"] == 1
    assert found["sequence"].accuracies["recall_at_1"] < 1
    for query, others in enumerate(found["sequence"].indices.tolist()):
        assert {query, query ^ 1}.isdisjoint(others)  # a copy is the row before or after
    assert int(found["none"].relevant[0]) == int(found["sequence"].relevant[0]) + 1


def test_a_run_measures_verification_pairs(tmp_path):
    run = built(tmp_path, "evaluation.verification=200")
    found = evaluate_split(run, run.queries)
    points = torch.nn.functional.normalize(run.embeddings(run.queries))
    pairs = pairs_of_classes(run.true_labels(run.queries), most=200)
    expected = verify(points, pairs, distance=LpDistance(normalize_embeddings=False))
    assert {name: found[f"verification_{name}"] for name in expected} == expected
    assert {"verification_eer", "recall_at_1"} <= set(run.recipe.evaluation.metric_names())
    assert "verification_eer" not in built(tmp_path / "plain").recipe.evaluation.metric_names()


def test_verification_that_does_not_fit(tmp_path):
    run = built(tmp_path, "evaluation.verification=2")
    with pytest.raises(DataError, match="the images of test cannot be tested: ten folds need ten pairs of each kind"):
        evaluate_split(run, run.queries)
    with pytest.raises(ConfigError, match="evaluation.verification: it needs pairs of one class"):
        built(
            tmp_path, "evaluation.verification=2", "data.relation=near", "data.relation.within=2", recipe="cbml/digits"
        )


SETTINGS = ["schedule.epochs=3", "evaluation.baselines=false", "evaluation.training_images=0"]
SETTINGS += ["evaluation.validation=0.3", "sampler.batch_size=56"]


@pytest.mark.usefixtures("without_report")
def test_validates_every_second_epoch_and_the_last(tmp_path):
    seen = []
    every_second = ("evaluation.select='map_at_r'", "evaluation.every=2")
    run = built(tmp_path / "run", *SETTINGS, *every_second, recipe="cbml/digits")
    train_run(run, finish, after_validation=lambda epoch, best: seen.append((epoch, best)))
    assert [epoch for epoch, _ in seen] == [2, 3]
    assert all(0 <= best <= 1 for _, best in seen)
    assert seen[1][1] >= seen[0][1]  # the best value so far


@pytest.mark.usefixtures("without_report")
def test_validation_classes_of_one_image_choose_nothing(tmp_path):
    run = built(tmp_path / "run", *SETTINGS, "evaluation.select=recall_at_1", recipe="cbml/digits")
    check_validation(run)
    images = run.splits["validation"]
    _, first = np.unique(images.labels, return_index=True)
    run.splits["validation"] = images.subset(first)
    with pytest.raises(DataError, match="no class has two of the 3 validation images, .* leave out select"):
        train_run(run, finish)


@pytest.mark.usefixtures("without_report")
def test_an_epoch_whose_metric_is_nan_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("pml_ext_train.training.validation.evaluate_split", lambda *_: {"map_at_r": math.nan})
    run = built(tmp_path / "run", *SETTINGS, "evaluation.select=map_at_r", recipe="cbml/digits")
    run.epoch = 1
    validate(run, Mock(), checkpointer=None)
    text = "evaluation.select: map_at_r of validation is NaN; an epoch with NaN is not chosen"
    assert text in run.history.warnings
    assert run.history.best["epoch"] is None


@pytest.mark.parametrize("seed", [0, 7])
def test_half_of_every_class_is_drawn(seed):
    labels = np.array([2] * 5 + [0] * 4 + [9])
    chosen = first_halves(labels, seed)
    for label, half in ((2, 3), (0, 2), (9, 1)):  # rounded up
        assert chosen[labels == label].sum() == half
    assert (chosen == first_halves(labels, seed)).all()
    assert any((chosen != first_halves(labels, other)).any() for other in (1, 2, 3))
