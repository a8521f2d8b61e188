"""Figures hold what they are given."""

import io
import warnings

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgba
from matplotlib.image import imread
from pytorch_metric_learning.distances import LpDistance

from pml_ext_train.report import figures


def pixels(figure):
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    buffer.seek(0)
    return imread(buffer)


def clusters(classes=3, count=60):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % classes
    return torch.eye(8)[labels] + 0.1 * torch.randn(count, 8, generator=generator), labels


def test_curves_hold_the_numbers_they_are_given():
    figure = figures.loss_curves({"loss": ([1, 2, 3], [3.0, 2.0, 1.0]), "variance": (range(100), [2.0] * 100)})
    assert [axes.get_title() for axes in figure.axes] == ["loss", "variance"]
    assert list(figure.axes[0].lines[0].get_ydata()) == [3.0, 2.0, 1.0]
    assert list(figure.axes[1].lines[1].get_ydata()) == pytest.approx([2.0] * 100)
    series = {"test images": ([0, 5], [0.5, 0.75])} | {f"recipe {number}": ([5], [0.25]) for number in range(5)}
    figure = figures.epoch_curves({"recall_at_1": series})
    (axes,) = figure.axes
    assert (axes.get_title(), len({(o.get_color(), o.get_linestyle()) for o in axes.lines})) == ("recall_at_1, %", 6)
    assert [list(line.get_ydata()) for line in axes.lines] == [[50.0, 75.0], *[[25.0]] * 5]
    assert axes.get_legend() is None
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [*series]
    figure = figures.recall_curve({"raw": {1: 0.5, 8: 0.75}} | {f"baseline {number}": {1: 0.25} for number in range(7)})
    (axes,) = figure.axes
    assert axes.get_legend() is None  # it stands beside the curves
    assert len(figure.legends[0].get_texts()) == len({line.get_color() for line in axes.lines}) == 8
    assert (axes.get_xscale(), list(axes.lines[0].get_ydata())) == ("log", [50.0, 75.0])
    assert figures.recall_curve({"raw": {1: 0.5}}).axes[0].get_xscale() == "linear"


def test_similarity_distributions_tell_positive_from_negative():
    embeddings, labels = clusters()
    figure = figures.similarity_distributions(
        {"training": (embeddings, labels), "test": (embeddings[:10], labels[:10])}
    )
    assert [axes.get_title() for axes in figure.axes] == ["training", "test"]
    positive, negative = (text.get_text() for text in figure.axes[0].get_legend().get_texts())
    points = torch.nn.functional.normalize(embeddings)
    same = (labels[:, None] == labels) & ~torch.eye(60, dtype=torch.bool)
    assert positive.startswith(f"positive: {(points @ points.T)[same].mean():.2f}")
    assert negative.startswith(f"negative: {(points @ points.T)[labels[:, None] != labels].mean():.2f}")


@pytest.mark.parametrize("method", ["pca", "tsne"])
def test_projection_separates_clusters_and_is_seeded(method):
    embeddings, labels = clusters()
    parts = {"before": (torch.randn(60, 8), labels), "after": (embeddings, labels)}
    drawn = [figures.projections(parts, ["a", "b", "c"], method).axes[1] for _ in range(2)]
    flat = [np.asarray(axes.collections[0].get_offsets()) for axes in drawn]
    assert np.array_equal(*flat)
    centers = np.stack([flat[0][labels.numpy() == c].mean(0) for c in range(3)])
    nearest = np.linalg.norm(flat[0][:, None] - centers, axis=2).argmin(1)
    assert (nearest == labels.numpy()).all()
    assert [text.get_text() for text in drawn[0].get_legend().get_texts()] == ["a", "b", "c"]


def test_a_gallery_frames_right_and_wrong_images():
    photograph = torch.zeros(3, 400, 200, dtype=torch.uint8)
    drawing = torch.full((1, 4, 4), 50, dtype=torch.uint8)
    row = [figures.answer(drawing, f"{right}", right) for right in (True, False, None)]
    figure = figures.gallery([[(photograph, "query", figures.BLUE), *row], [None, row[1]]])
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.texts] == ["query", "✓ True", "✗ False", "None", "✗ False"]
    frames = [patch.get_edgecolor() for patch in axes.patches]
    assert frames == [to_rgba(getattr(figures, name)) for name in ("BLUE", "RIGHT", "WRONG", "GRAY", "WRONG")]
    left, right, bottom, top = axes.images[0].get_extent()  # a large photograph is drawn small, in its own shape
    assert (right - left, bottom - top) == pytest.approx((0.5, 1.0))
    assert axes.images[0].get_array().shape == (220, 110, 3)
    close = np.abs(pixels(figure)[..., :3] - np.array(to_rgba(figures.RIGHT))[:3]).max(axis=2) < 0.02
    assert close.sum() > 50


@pytest.mark.parametrize("method", ["pca", "tsne"])
@pytest.mark.parametrize(("noise", "size"), [(0, 1), (1e-7, 1), (0, 1e30)])
def test_collapsed_embeddings_are_one_point_with_a_note(method, noise, size):
    generator = torch.Generator().manual_seed(0)
    point = torch.randn(1, 16, generator=generator)
    collapsed = size * (point + noise * torch.randn(30, 16, generator=generator))
    embeddings, labels = clusters()
    parts = {"before": (embeddings, labels), "after": (collapsed, labels[:30])}
    before, after = figures.projections(parts, method=method).axes
    assert np.ptp(before.collections[0].get_offsets(), axis=0).min() > 0.1
    assert not np.ptp(after.collections[0].get_offsets(), axis=0).any()
    assert [text.get_text() for text in after.texts] == ["all images lie on one point"]
    assert not before.texts
    assert after.get_title() == "after\n30 images of 3 classes, collapsed"


def test_similarities_that_are_all_alike_have_a_note():
    embeddings, labels = clusters()
    point = embeddings[:1].expand(60, -1)
    learned = {"score": LpDistance(normalize_embeddings=False)}
    parts = {"training": (embeddings, labels), "test": (1e25 * point, labels), "score": (point, labels)}
    figure = figures.similarity_distributions(parts, learned=learned)
    notes = [[text.get_text() for text in axes.texts] for axes in figure.axes]
    assert notes == [[], ["all pairs have the value 1"], ["all pairs have the value 0"]]
    assert figure.axes[1].get_legend().get_texts()[0].get_text() == "positive: 1.00 ± 0.00"
    assert pixels(figure).size > 0


NAMES = ["price $5_$6", "$x^$", "a_b^{", "two\x00\x07", "\udcff.png", "中文", "שלום"]


def test_names_from_data_are_shown_as_they_are():
    image = torch.zeros(1, 4, 4, dtype=torch.uint8)
    labels = torch.arange(14) % 7
    drawn = [
        figures.projections({"all": (torch.randn(14, 4), labels)}, NAMES, "pca"),
        figures.gallery([[figures.answer(image, name, None)] for name in NAMES]),
    ]
    with warnings.catch_warnings(action="error"):
        for figure in drawn:
            assert pixels(figure).size > 0
    legend = [text.get_text() for text in drawn[0].axes[0].get_legend().get_texts()]
    assert legend == [*NAMES[:3], "two��", "�.png", *NAMES[5:]]
