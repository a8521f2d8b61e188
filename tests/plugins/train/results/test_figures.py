"""The figures of a run: which ones it has, and how inputs of the network are shown."""

import torch

from pml_ext_train.results.figures import _as_bytes, figures_of_run
from pml_ext_train.training import open_run

TITLES = [
    "Recall@K before and after training",
    "Similarities of positive and negative pairs",
    "The embeddings of test images in two dimensions: t-SNE",
    "Queries and their nearest test images",
    "Training images as the network saw them",
]


def test_few_figures_are_drawn_on_request(finished):
    view = open_run(finished[0], 0, "cpu")
    drawn = list(figures_of_run(view, [], finished[1]))
    assert [figure.title for figure in drawn] == ["The loss and its terms", *TITLES]
    assert not any(figure.problem for figure in drawn)
    view.recipe.evaluation.figures = "few"
    few = [figure.title for figure in figures_of_run(view, [], finished[1])]
    assert few == ["The loss and its terms", TITLES[1], TITLES[3]]


def test_inputs_are_shown_from_black_to_white():
    shown = _as_bytes(torch.tensor([[-2.0, 0.0, 2.0]]))
    assert shown.tolist() == [[0, 127, 255]]
    assert _as_bytes(torch.full((1, 2), 7.0)).tolist() == [[0, 0]]  # of one value
