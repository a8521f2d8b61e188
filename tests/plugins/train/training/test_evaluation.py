"""Metrics of a run: groups of queries, and verification."""

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext.errors import ConfigError, DataError
from pml_ext.evaluation import pairs_of_classes, verify
from pml_ext.pml import LpDistance
from pml_ext_train.recipe import load_recipe
from pml_ext_train.training import Run, evaluate_split, nearest

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
