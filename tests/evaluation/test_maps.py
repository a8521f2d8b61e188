"""Maps of embeddings: classes that are chosen, and images in their places."""

import io

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from matplotlib.offsetbox import AnnotationBbox
from sklearn.decomposition import PCA

from pml_ext.evaluation import figures


def clusters(count=60):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 6
    return torch.eye(8)[labels] + 0.1 * torch.randn(count, 8, generator=generator), labels


def test_four_classes_by_their_principal_components():
    embeddings, labels = clusters()
    axes = figures.chosen_classes(3 * embeddings, labels, [f"class {number}" for number in range(6)], seed=1).axes[0]
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert len(names) == len(set(names)) == 4
    drawn = [int(name.removeprefix("class ")) for name in names]
    chosen = torch.isin(labels, torch.tensor(drawn))
    flat = PCA(2, random_state=1).fit_transform(torch.nn.functional.normalize(embeddings[chosen]).numpy())
    for label, points in zip(drawn, axes.collections, strict=True):
        wanted = flat[labels[chosen].numpy() == label]
        np.testing.assert_allclose(np.abs(points.get_offsets()), np.abs(wanted), atol=1e-3)
    few = figures.chosen_classes(torch.ones(3, 4), torch.tensor([5, 5, 5])).axes[0]
    assert few.texts[0].get_text() == "all images lie on one point"
    with pytest.raises(ValueError, match="draws from 1 to 8 classes, not 9"):
        figures.chosen_classes(embeddings, labels, classes=9)
    with pytest.raises(ValueError, match=r"shape \[3\], wanted \[N, D\]"):
        figures.chosen_classes(torch.ones(3), torch.tensor([5, 5, 5]))


def test_images_stand_at_their_places():
    embeddings, labels = clusters(24)
    seen = []

    def image(index):
        seen.append(index)
        return torch.full((1, 60, 30), 40 * int(labels[index]), dtype=torch.uint8)

    figure = figures.image_map(embeddings, image, max_items=20)
    whole, *regions = figure.axes
    assert len(seen) == len(set(seen)) == 20
    assert whole.get_title() == "20 images, t-SNE"
    assert [axes.get_title() for axes in regions] == ["region 1", "region 2"]
    boxes = [artist for artist in whole.artists if isinstance(artist, AnnotationBbox)]
    shades = [int(box.offsetbox.get_data()[0, 0, 0]) for box in boxes]
    assert sorted(shades) == sorted(40 * int(labels[index]) for index in seen)
    counts = [len(axes.artists) for axes in regions]
    assert counts[0] >= counts[1] > 0
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    buffer.seek(0)
    assert imread(buffer).std() > 0
    assert len(figures.image_map(embeddings[:5], image, enlarged=0).axes) == 1
