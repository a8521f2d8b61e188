"""Clusters of a folder's images: groups, tables, contact sheets, and the command."""

import csv
import shutil

import numpy as np
import pytest
import torch
from scipy.sparse.csgraph import connected_components
from sklearn.metrics.pairwise import cosine_similarity

from pml_ext.errors import ConfigError
from pml_ext.evaluation import purity
from pml_ext_search.cluster.clusters import REST, group
from pml_ext_search.cluster.first_neighbors import first_neighbor_partitions
from pml_ext_search.collection.embedded import Embedded

pytestmark = pytest.mark.filterwarnings("ignore::pml_ext_search.SkippedImage")


def blobs(sizes, dimensions=16, spread=0.05):
    """Unit vectors around centers, with their classes as folders."""
    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(len(sizes), dimensions, generator=generator)
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    points = centers[labels] + spread * torch.randn(len(labels), dimensions, generator=generator)
    paths = [f"class {label}/{number}.png" for number, label in enumerate(labels.tolist())]
    return Embedded(None, paths, torch.nn.functional.normalize(points), {})


@pytest.mark.parametrize(
    ("sizes", "compared", "method"),
    [
        ([40, 30, 20], 100, "first neighbors"),
        ([400, 300, 200], 90, "first neighbors of 90 images, drawn at random; the others by their nearest"),
    ],
)
def test_each_image_joins_a_cluster_of_its_class(sizes, compared, method, monkeypatch):
    monkeypatch.setattr("pml_ext_search.cluster.clusters.COMPARED", compared)
    grouping = group(blobs(sizes), "auto")
    assert grouping.method == method
    found = [len(each.members) for each in grouping.clusters]
    assert found == sorted(found, reverse=True)
    assert sum(found) == sum(sizes)
    assert all(each.share == 1 for each in grouping.clusters)
    assert np.isfinite(grouping.distances).all()
    finer, *coarser = grouping.other_numbers
    assert finer > len(found)
    assert all(number < len(found) for number in coarser)


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


def test_few_and_equal_points_are_one_cluster():
    assert as_sets(first_neighbor_partitions(torch.eye(4)[[0, 0, 0, 0, 1, 1, 1]])[0]) == {(0, 1, 2, 3), (4, 5, 6)}
    assert [labels.tolist() for labels in first_neighbor_partitions(torch.eye(4)[:1])] == [[0]]
    assert [labels.tolist() for labels in first_neighbor_partitions(torch.eye(4)[:2])] == [[0, 0]]


def test_only_sheets_of_an_earlier_table_are_removed(make, few, tmp_path, monkeypatch):
    photos = shutil.copytree(few[0], tmp_path / "photos")
    mine = [photos / "mine.png", photos / "cluster-7.png"]
    for file in mine:
        shutil.copy(next(photos.glob("1/*")), file)
    content = [file.read_bytes() for file in mine]
    run = make()
    assert {*run.cluster(photos, 5, photos).values()} == {*range(5)}
    monkeypatch.setattr("pml_ext_search.cluster.clusters.SHEETS", 1)
    run.cluster(photos, 2, photos)
    assert [file.read_bytes() for file in mine] == content
    assert [path.name for path in photos.glob("cluster-0*.png")] == ["cluster-000.png"]


def partitions_by_a_loop(points):
    """FINCH as in the paper: i and j are linked if one is the other's first neighbor, or if both have the same one."""
    rows = points.double().numpy()
    labels = np.arange(len(rows))
    partitions = []
    while True:
        similarities = cosine_similarity([rows[labels == label].mean(0) for label in range(labels.max() + 1)])
        np.fill_diagonal(similarities, -np.inf)
        first = similarities.argmax(1)
        linked = (first[:, None] == np.arange(len(first))) | (first[:, None] == first)
        count, joined = connected_components(linked, directed=False)
        if count == 1:
            return partitions
        labels = joined[labels]
        partitions.append(as_sets(labels))


def as_sets(labels):
    return {tuple(np.flatnonzero(labels == label).tolist()) for label in np.unique(labels)}


def test_partitions_are_those_of_a_loop():
    points = torch.nn.functional.normalize(torch.randn(120, 12, generator=torch.Generator().manual_seed(0)))
    found = [as_sets(labels) for labels in first_neighbor_partitions(points)]
    assert len(found) > 1
    assert found == partitions_by_a_loop(points)


@pytest.mark.parametrize("name", ["cluster-000.png", "clusters.csv"])
def test_files_of_others_are_not_overwritten(make, few, tmp_path, name):
    (tmp_path / name).write_bytes(b"mine")
    with pytest.raises(ConfigError, match=rf"{name} was not written by pml-ext cluster; type -o FOLDER"):
        make().cluster(few[0], 2, tmp_path)
    assert [path.read_bytes() for path in tmp_path.glob("cl*")] == [b"mine"]


def rows_of(place):
    return list(csv.DictReader((place / "clusters.csv").open(newline="")))


def test_clusters_their_table_and_their_sheets(json_of, indexed, folder, tmp_path):
    run = indexed[0]
    place = tmp_path / "clusters"
    told = json_of("cluster", run.folder, folder, "--clusters", "12", "-o", place)
    sheets = [str(place / f"cluster-{number:03d}.png") for number in range(12)]
    assert [each["sheet"] for each in told["clusters"]] == sheets == sorted(map(str, place.glob("cluster-*.png")))
    assert told["table"] == str(place / "clusters.csv")
    rows = rows_of(place)
    numbers = [int(row["cluster"]) for row in rows]
    sizes = np.bincount(numbers).tolist()
    assert sum(sizes) == 200
    assert sizes == sorted(sizes, reverse=True)
    assert purity([int(row["class"]) for row in rows], numbers) > 0.6
    with pytest.raises(ConfigError, match="--clusters 201: wanted 201 images or more; .* has 200"):
        run.cluster(folder, 201, tmp_path / "none")  # as many as there are files, but one is unreadable
    assert not (tmp_path / "none").exists()
    for each in told["clusters"]:
        mine = [row for row in rows if int(row["cluster"]) == each["number"]]
        own = [row["class"] for row in mine]
        assert len(each["members"]) == len(mine)
        assert each["share"] == max(own.count(name) for name in own) / len(own) == own.count(each["name"]) / len(own)
        apart = [float(rows[member]["distance_to_center"]) for member in each["members"]]
        assert apart == sorted(apart)
        assert all(row["path"].startswith(f"{row['class']}/") for row in mine)


def test_other_numbers_of_clusters_are_suggested(json_of, text_of, indexed, folder, tmp_path):
    line = ("cluster", indexed[0].folder, folder, "--clusters", "auto", "-o", tmp_path / "clusters")
    told = json_of(*line)
    found = f"{len(told['clusters'])} clusters by first neighbors. For smaller or larger ones: "
    assert f"{found}--clusters {told['other_numbers'][0]}" in text_of(*line)


def test_the_rest_is_marked_in_table_and_sheets(command, json_of, text_of, indexed, folder, tmp_path):
    place = tmp_path / "clusters"
    options = ("cluster", indexed[0].folder, folder, "--clusters", 30, "--min-size", 7, "-o", place)
    told = json_of(*options)
    *groups, rest = told["clusters"]
    assert [each["rest"] for each in told["clusters"]] == [False] * len(groups) + [True]
    assert min(len(each["members"]) for each in groups) >= 7
    rows = [row for row in rows_of(place) if row["cluster"] == "rest"]
    assert [(row["distance_to_center"], row["sheet"]) for row in rows] == [("", "cluster-rest.png")] * len(rows)
    assert len(rows) == len(rest["members"])
    assert rest["sheet"] == str(place / "cluster-rest.png")
    assert f"{len(groups)} clusters by k-means; rest: {len(rows)} images in no group of 7 or more" in text_of(*options)
    command("cluster", indexed[0].folder, folder, "--clusters", 3, "-o", place)
    assert not (place / "cluster-rest.png").exists()
