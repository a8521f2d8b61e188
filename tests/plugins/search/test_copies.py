"""The metric of made-up copies, and its radius."""

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext.whitening import WithinClassWhitening
from pml_ext_search.copies import CHANGES, FARTHEST, HELD, SAMPLE, SHRINKAGE, fit_metric

from .photographs import photograph, thumbnails


@pytest.fixture
def files(tmp_path):
    for number in range(7):
        photograph(number).save(tmp_path / f"{number}.png")
    return sorted(tmp_path.glob("*.png"))


def families_of(files):
    families = []
    for file in files:
        image = Image.open(file)
        families.append([image, *(change(image) for change in CHANGES)])
    return families


def test_the_radius_holds_copies_of_photographs_that_were_left_out(files):
    """By a loop over pairs, each measured by a whitening of the other half of the photographs."""
    families = families_of(files)
    copies = []
    others = []
    for half in (0, 1):
        fitted = [images for number, images in enumerate(families) if number % 2 == half]
        rows = torch.cat([thumbnails(images) for images in fitted])
        labels = [number for number, images in enumerate(fitted) for _ in images]
        layer = WithinClassWhitening(SHRINKAGE).fit(rows, np.array(labels)).requires_grad_(False)

        def point(image, layer=layer):
            row = layer(thumbnails([image]))[0].double()
            return row / row.norm()

        for number, images in enumerate(families):
            if number % 2 != half:
                for copy in images[1:]:
                    copies.append(float((point(copy) - point(images[0])).norm()))
            for other in families[:number]:
                others.append(float((point(other[0]) - point(images[0])).norm()))
    wanted = min(np.quantile(copies, HELD), FARTHEST * sorted(others)[(len(others) - 1) // 2])
    metric = fit_metric(files, thumbnails)
    assert metric.radius == pytest.approx(wanted, abs=1e-4)
    assert (metric.photographs, metric.copies) == (7, 7 * len(CHANGES))


def test_copies_are_nearer_than_before_in_comparison_with_others(files):
    metric = fit_metric(files, thumbnails)
    rows = torch.stack([thumbnails(images) for images in families_of(files)])
    ratios = []
    for points in (rows, metric.points(rows.flatten(0, 1)).view(rows.shape)):
        assert torch.allclose(points.norm(dim=2), torch.ones(()), atol=1e-5)
        to_copies = (points[:, 1:] - points[:, :1]).norm(dim=2).mean()
        ratios.append(float(to_copies / torch.pdist(points[:, 0]).mean()))
    assert ratios[1] < ratios[0]


def test_it_is_the_same_each_time(files):
    first = fit_metric(files, thumbnails)
    second = fit_metric(files, thumbnails)
    assert first.radius == second.radius
    assert torch.equal(first.layer.weight, second.layer.weight)


def test_a_sample_of_many_files_is_drawn(files):
    metric = fit_metric(files * 20, thumbnails)
    assert metric.photographs == SAMPLE


def test_the_radius_is_bounded_where_copies_are_as_far_as_others(files):
    generator = torch.Generator().manual_seed(0)

    def noise(images):
        return torch.nn.functional.normalize(torch.randn(len(images), 64, generator=generator))

    metric = fit_metric(files, noise)
    assert metric.radius < 0.75  # copies are at 1.4


def test_unreadable_files_are_left_out(files, tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    assert fit_metric([*files[:3], broken, tmp_path / "gone.png"], thumbnails).photographs == 3
    assert fit_metric([files[0], broken], thumbnails) is None
    assert fit_metric(files, lambda images: torch.ones(len(images), 8)) is None
