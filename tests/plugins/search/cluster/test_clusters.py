"""Clusters of a folder's images, their table and their sheets."""

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext.errors import ConfigError
from pml_ext_search.cluster.clusters import group
from pml_ext_search.collection.embedded import Embedded


def blobs(sizes, dimensions=16, spread=0.05):
    """Unit vectors around centers, with their classes as folders."""
    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(len(sizes), dimensions, generator=generator)
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    points = centers[labels] + spread * torch.randn(len(labels), dimensions, generator=generator)
    names = [f"class {label}" for label in labels.tolist()]
    paths = [f"{name}/{number}.png" for number, name in enumerate(names)]
    return Embedded(None, paths, torch.nn.functional.normalize(points), {})


def test_each_image_joins_a_cluster_of_its_class():
    embedded = blobs([40, 30, 20])
    grouping = group(embedded, "auto")
    sizes = [len(each.members) for each in grouping.clusters]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) == 90
    assert all(each.share == 1 for each in grouping.clusters)
    assert np.isfinite(grouping.distances).all()
    assert grouping.method == "first neighbors"
    finer, *coarser = grouping.other_numbers
    assert finer > len(sizes)
    assert all(number < len(sizes) for number in coarser)


def test_a_large_collection_is_clustered_by_a_sample(monkeypatch):
    embedded = blobs([400, 300, 200])
    monkeypatch.setattr("pml_ext_search.cluster.clusters.COMPARED", 90)
    grouping = group(embedded, "auto")
    assert grouping.method == "first neighbors of 90 images, drawn at random; the others by their nearest"
    assert sum(len(each.members) for each in grouping.clusters) == 900
    assert all(each.share == 1 for each in grouping.clusters)


def test_only_sheets_of_an_earlier_table_are_removed(make, few, tmp_path, monkeypatch):
    photos = tmp_path / "photos"
    shutil.copytree(few[0], photos)
    mine = {name: Image.new("L", (8, 8), number * 20) for number, name in enumerate(["mine.png", "cluster-7.png"])}
    for name, image in mine.items():
        image.save(photos / name)
    content = {name: (photos / name).read_bytes() for name in mine}
    run = make()
    assert {*run.cluster(photos, 5, photos).values()} == {*range(5)}
    monkeypatch.setattr("pml_ext_search.cluster.clusters.SHEETS", 1)
    run.cluster(photos, 2, photos)
    assert {name: (photos / name).read_bytes() for name in mine} == content
    assert sorted(path.name for path in photos.glob("cluster-0*.png")) == ["cluster-000.png"]
    (tmp_path / "out").mkdir()
    for name in ("cluster-000.png", "clusters.csv"):
        (tmp_path / "out" / name).write_bytes(b"mine")
        with pytest.raises(ConfigError, match=rf"{name} was not written by pml-ext cluster; type -o FOLDER"):
            run.cluster(few[0], 2, tmp_path / "out")
        assert [path.read_bytes() for path in (tmp_path / "out").iterdir()] == [b"mine"]
        (tmp_path / "out" / name).unlink()
