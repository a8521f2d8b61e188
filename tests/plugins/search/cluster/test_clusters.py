"""Clusters of a folder's images, their table and their sheets."""

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext.errors import ConfigError
from pml_ext_search.cluster.clusters import REST, group
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


@pytest.mark.parametrize("chosen", [None, [*range(0, 91, 2)]])
def test_small_groups_go_to_the_rest(chosen):
    embedded = blobs([40, 30, 20, 1], spread=0.01)
    whole = group(embedded, 4, chosen)
    grouping = group(embedded, 4, chosen, min_size=11)
    *groups, rest = grouping.clusters
    assert groups == [each for each in whole.clusters if len(each.members) >= 11]
    small = [each for each in whole.clusters if len(each.members) < 11]
    assert (rest.number, grouping.rest) == (REST, len(rest.members))
    assert rest.members == [member for each in small for member in sorted(each.members)]
    assert rest.title.startswith(f"rest: {grouping.rest} image")
    in_groups = np.isin(range(91), [member for each in groups for member in each.members])
    assert (np.isfinite(grouping.distances) == in_groups).all()
    assert ((grouping.numbers >= 0) == in_groups).all()


def test_joined_groups_keep_the_smallest_number():
    embedded = blobs([40, 30, 20, 10], spread=0.01)
    whole = group(embedded, 4)
    grouping = whole.joined([(2, 1), (1, 3)])
    assert [(each.number, len(each.members)) for each in grouping.clusters] == [(1, 60), (0, 40)]
    members = grouping.clusters[0].members
    assert sorted(members) == [*range(40, 100)]
    points = embedded.embeddings.numpy()
    distances = np.linalg.norm(points - points[40:].mean(0), axis=1)
    np.testing.assert_allclose(grouping.distances[members], np.sort(distances[40:]), atol=1e-5)
    assert (grouping.numbers[40:] == 1).all()
    for wrong in ((1, 4), (REST, 0), (2, 2)):
        with pytest.raises(ConfigError, match="there are no such groups to join"):
            whole.joined([wrong])


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
