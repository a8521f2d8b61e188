"""Collapse of embeddings."""

import math

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext.errors import ConfigError, DataError, TrainingError
from pml_ext.evaluation import pairs_of_classes, verify
from pml_ext.pairwise import ListedTuples
from pml_ext.pml import LpDistance
from pml_ext.recipe import load_recipes
from pml_ext.relations import Hierarchy
from pml_ext.training.evaluation import collapse, collapse_of_listed, evaluate_split, missing_pairs, nearest
from pml_ext.training.run import Run

LABELS = torch.arange(60) % 6


def in_a_cone(spread: float, noise: float = 0.0) -> torch.Tensor:
    """One direction, plus one of each class, plus noise: the mean cosine similarity is near 1 for a small spread."""
    generator = torch.Generator().manual_seed(0)
    points = spread * torch.eye(16)[LABELS] + noise * torch.randn(60, 16, generator=generator)
    return points + torch.ones(16)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_similar_directions_are_no_collapse(scale):
    points = in_a_cone(0.1, 0.001)
    directions = torch.nn.functional.normalize(points)
    assert (directions @ directions.T).mean() > 0.99
    assert collapse(scale * points, LABELS) is None
    assert collapse(scale * points, LABELS.numpy()) is None


@pytest.mark.parametrize("points", [in_a_cone(0.0), in_a_cone(0.0, 0.01), in_a_cone(1e-5), in_a_cone(1e-6, 1e-8)])
def test_classes_that_no_search_tells_apart_are_a_collapse(points):
    similarity = collapse(points, LABELS)
    assert similarity is not None
    directions = torch.nn.functional.normalize(points.double())
    off_diagonal = ~torch.eye(60, dtype=torch.bool)
    assert similarity == pytest.approx(float((directions @ directions.T)[off_diagonal].mean()))


def test_what_cannot_be_judged_is_no_collapse():
    assert collapse(torch.randn(60, 16), LABELS) is None
    assert collapse(torch.ones(1, 4), LABELS[:1]) is None
    assert collapse(torch.full((6, 4), math.nan), LABELS[:6]) is None
    assert collapse(torch.ones(6, 4), torch.arange(6)) is not None


def test_listed_tuples_that_no_search_tells_apart_are_a_collapse():
    ordered = torch.tensor([[1.0, 0.0], [1.0, 1e-3], [1.0, 9e-3], [1.0, 10e-3]])
    pairs = ListedTuples([[0, 1], [2, 3], [0, 3], [1, 2]], [True, True, False, False])
    triplets = ListedTuples([[0, 1, 2], [3, 2, 0]])
    for tuples in (pairs, triplets):
        assert collapse_of_listed(ordered, tuples) is None
        assert collapse_of_listed(torch.ones(4, 2), tuples) == pytest.approx(1)
        assert collapse_of_listed(torch.eye(4), tuples) is None  # far from each other
    wrong = ListedTuples(pairs.rows, ~pairs.same)
    assert collapse_of_listed(ordered, wrong) > 0.99
    assert collapse_of_listed(torch.ones(4, 2), pairs.some([0])) == pytest.approx(1)  # no order of one kind
    assert collapse_of_listed(torch.ones(1, 2), triplets.some([])) is None


def test_what_pairs_no_batch_has():
    one = torch.tensor([0, 1, 2])
    pair = torch.tensor([3, 3])
    both = torch.tensor([0, 0, 1])
    assert "no batch has a positive pair" in missing_pairs([one, one[:2]], None)
    assert "no batch has a negative pair" in missing_pairs([pair], None)
    assert "no triplets" in missing_pairs([one, pair], None)
    assert missing_pairs([one, both], None) == ""
    relation = Hierarchy(["a/0", "a/1", "b/2"], level=1)
    assert missing_pairs([one], relation) == ""  # 0 and 1 have the same parent
    assert "no batch has a negative pair" in missing_pairs([both], relation)


def test_embeddings_that_are_not_finite_are_not_ranked(tmp_path):
    run = Run(next(iter(load_recipes("cbml/digits", ["model.trunk.width=8"]).values())), "cbml/digits", tmp_path)
    torch.nn.init.constant_(run.embedder.bias, math.nan)
    with pytest.raises(TrainingError, match="the network gives nan for images to test"):
        evaluate_split(run, "test")


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
        (recipe,) = load_recipes("pml/photographs", [f"data.name=table:{tmp_path / column}.csv", *settings]).values()
        run = Run(recipe, column, tmp_path / column)
        found[column] = nearest(run, run.queries)
    assert found["none"].accuracies["recall_at_1"] == 1
    assert found["sequence"].accuracies["recall_at_1"] < 1
    for query, others in enumerate(found["sequence"].indices.tolist()):
        assert {query, query ^ 1}.isdisjoint(others)  # a copy is the row before or after
    assert int(found["none"].relevant[0]) == int(found["sequence"].relevant[0]) + 1


def run_of(tmp_path, *settings):
    (recipe,) = load_recipes("cbml/digits", ["model.trunk.width=8", *settings]).values()
    return Run(recipe, "cbml/digits", tmp_path)


def test_verification_in_a_run(tmp_path):
    run = run_of(tmp_path, "evaluation.verification=200")
    found = evaluate_split(run, run.queries)
    points = torch.nn.functional.normalize(run.embeddings(run.queries))
    pairs = pairs_of_classes(run.true_labels(run.queries), most=200)
    expected = verify(points, pairs, distance=LpDistance(normalize_embeddings=False))
    assert {name: found[f"verification_{name}"] for name in expected} == expected
    assert found.keys() >= {f"verification_{name}" for name in expected}
    assert {"verification_eer", "recall_at_1"} <= set(run.recipe.evaluation.metric_names())
    assert "verification_eer" not in run_of(tmp_path / "plain").recipe.evaluation.metric_names()


def test_verification_that_does_not_fit(tmp_path):
    run = run_of(tmp_path, "evaluation.verification=2")
    with pytest.raises(DataError, match="the images of test cannot be tested: ten folds need ten pairs of each kind"):
        evaluate_split(run, run.queries)
    with pytest.raises(ConfigError, match="evaluation.verification: it takes pairs of equal classes"):
        run_of(tmp_path, "evaluation.verification=2", "data.relation=near", "data.relation.within=2")
