"""What a collection knows of a run's index, and what the page is told of it; no page, and no Gradio."""

import io
import json
import os
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext import load_run
from pml_ext.browse import Collection, open_collections, views
from pml_ext.errors import ConfigError, DataError
from pml_ext.retrieval import Embedded, Gallery


@pytest.fixture(scope="module")
def collection(indexed):
    run, gallery = indexed
    return Collection("one", run, gallery)


def made(points, paths, folder="/nowhere"):
    """A collection of made-up embeddings."""
    from pathlib import Path

    points = torch.nn.functional.normalize(torch.as_tensor(points, dtype=torch.float32))
    return Collection("made", SimpleNamespace(), Gallery(Path(folder), Embedded(Path(folder), paths, points, {}), ""))


def text(parts):
    """All that a page would show; what JSON and UTF-8 cannot have is an error."""
    return json.dumps(parts, ensure_ascii=False, allow_nan=False).encode("utf-8").decode()


def test_the_nearest_of_an_image_are_the_answers_of_a_query(collection, folder):
    for number in (0, 77, 199):
        near = collection.nearest(number, 6)
        (answer,) = collection.run.query(folder / collection.paths[number], 6, collection.gallery)
        assert [each.path for each in near] == answer.paths
        assert [each.distance for each in near] == pytest.approx(answer.distances, abs=1e-3)
        assert [each.right for each in near] == [name == answer.query_class for name in answer.classes]
        assert collection.nearest_to_file(folder / collection.paths[number], 6)[0].path == near[0].path
    assert len(collection.nearest(0, 1000)) == 199
    with pytest.raises(DataError, match="no image number 200; the index of one has 200"):
        collection.nearest(200, 3)


def test_duplicates_and_images_without_classes():
    collection = made([[1, 0], [1, 0], [0, 1]], ["a/1.png", "a/2.png", "3.png"])
    assert [(each.number, each.distance, each.right) for each in collection.nearest(0, 5)] == [
        (1, 0.0, True),
        (2, pytest.approx(2**0.5), None),
    ]
    judged = collection.judged()
    assert judged.numbers.tolist() == [0, 1]
    assert judged.nearest.tolist() == [1, 0]
    assert judged.note == "the 2 of 3 images that have a class"


def test_right_and_wrong_against_a_loop(collection, monkeypatch):
    judged = collection.judged()
    points = collection.points.numpy()
    for number, nearest, distance, right in zip(
        judged.numbers, judged.nearest, judged.distances, judged.right, strict=True
    ):
        apart = np.linalg.norm(points - points[number], axis=1)
        apart[number] = np.inf
        assert distance == pytest.approx(apart.min(), abs=1e-3)
        assert apart[nearest] == pytest.approx(apart.min(), abs=1e-3)
        assert right == (collection.classes[number] == collection.classes[nearest])
    wrong, count = views.pairs([collection], 0, right=False)
    assert count == (~judged.right).sum() == len(wrong[0]["items"]) > 0
    distances = [float(each["lines"][0].split()[1]) for each in wrong[0]["items"]]
    assert distances == sorted(distances)
    assert all(
        one.partition("  →  ")[0] != one.partition("  →  ")[2]
        for one in [each["lines"][1] for each in wrong[0]["items"]]
    )
    assert f"{judged.right.sum()} of 200 is of the same class (Recall@1" in views.summary([collection])
    monkeypatch.setattr("pml_ext.browse.collection.JUDGED", 20)
    monkeypatch.setattr("pml_ext.browse.collection.PAIRS", 0)
    few = Collection("few", collection.run, collection.gallery).judged()
    assert (len(few.numbers), few.note) == (20, "20 of 200 images, drawn at random")


def test_no_classes_no_right_and_wrong():
    with pytest.raises(DataError, match="right and wrong need a sub-folder per class"):
        made(torch.eye(3), ["1.png", "2.png", "3.png"]).judged()


def test_clusters_are_kept_and_their_sheets_mark_other_classes(collection):
    grouping = collection.clusters(10)
    assert collection.clusters(10) is grouping
    (cards,) = views.cluster_cards(0, collection, grouping)
    assert cards["title"] == "10 clusters of one by k-means"
    assert [card["cluster"] for card in cards["items"]] == list(range(10))
    assert {len(card["several"]) for card in cards["items"]} == {3}
    for cluster in grouping.clusters:
        (sheet,) = views.sheet(0, collection, grouping, cluster.number)
        assert [each["number"] for each in sheet["items"]] == cluster.members
        strange = [each["number"] for each in sheet["items"] if each.get("mark") is False]
        assert strange == [member for member in cluster.members if collection.classes[member] != cluster.name]
    with pytest.raises(ConfigError, match="--clusters 201: wanted from 1 to the 200 images"):
        collection.clusters(201)


@pytest.mark.parametrize("method", ["pca", "tsne"])
def test_a_map_has_every_image_at_a_place_of_its_own(collection, method):
    drawn = views.map_points(0, collection, method, None)
    assert [point[2] for point in drawn["points"]] == list(range(200))
    places = np.array([point[:2] for point in drawn["points"]])
    assert places.min() >= 0
    assert places.max() <= 1
    assert sorted(np.ptp(places, axis=0))[1] == pytest.approx(1, abs=1e-3)
    own = [drawn["groups"][point[3]]["name"] for point in drawn["points"]]
    assert own == collection.classes
    assert len({group["color"] for group in drawn["groups"]}) == 10
    by_cluster = views.map_points(0, collection, method, collection.clusters(4))
    assert len(by_cluster["groups"]) == 4
    assert by_cluster["groups"][0]["name"].startswith("cluster 0: ")
    text(drawn)


def test_a_map_of_a_sample_of_many_classes_and_of_one_point(monkeypatch):
    monkeypatch.setattr("pml_ext.browse.collection.MAPPED", {"pca": 50})
    collection = made(torch.randn(90, 4), [f"class {number % 45}/{number}.png" for number in range(90)])
    drawn = views.map_points(0, collection, "pca", None)
    assert len(drawn["points"]) == 50
    assert drawn["note"] == "50 of 90 images, drawn at random; principal components"
    assert sum(group["shown"] for group in drawn["groups"]) == views.LEGEND + 1
    assert drawn["groups"][-1]["name"] == f"and {len(drawn['groups']) - 1 - views.LEGEND} more"
    flat = views.map_points(0, made(torch.ones(5, 4), [f"{n}.png" for n in range(5)]), "pca", None)
    assert {tuple(point[:2]) for point in flat["points"]} == {(0.5, 0.5)}
    assert flat["note"] == "all images: they lie on one point"


def test_odd_names_are_told_as_they_are():
    names = ["price $5_$6/im $1_3.jpg", "<b>x</b>/</script>.png", "a`b/two\nlines\x00.png", "caf\udce9/\u202egpj.png"]
    collection = made(torch.eye(4), names)
    told = text([views.answers([collection], 0, 0, 3), views.map_points(0, collection, "pca", None)])
    assert "price $5_$6" in told
    assert "<b>x</b>" in told  # as text: the page never takes it for HTML
    assert "\\u0000" not in told
    assert "\u202e" not in told
    text([views.pairs([collection], 0, right=False)[0], views.cluster_cards(0, collection, collection.clusters(2))])
    views.summary([collection]).encode()
    assert "`a'b`" in views.summary([collection])


# Pictures


def size_of(content):
    with Image.open(io.BytesIO(content)) as image:
        return image.format, image.size


def test_a_picture_is_small_and_a_drawing_of_few_pixels_large_enough(collection, folder):
    assert size_of(collection.jpeg(0, 160)) == ("JPEG", (160, 160))  # 8 x 8, twenty times
    with pytest.raises(DataError):
        collection.jpeg(-1, 160)


def test_no_picture_of_a_file_outside_of_the_folder(tmp_path):
    """Nor of one that is gone, or damaged: the same placeholder."""
    place, secret = tmp_path / "photos", tmp_path / "secret.png"
    place.mkdir()
    Image.new("RGB", (50, 50), (255, 0, 0)).save(secret)
    shutil.copy(secret, place / "inside.png")
    (place / "link.png").symlink_to(secret)
    (place / "linked").symlink_to(tmp_path)
    (place / "to-inside.png").symlink_to(place / "inside.png")
    (place / "damaged.png").write_bytes(b"\x89PNG")
    paths = ["inside.png", "to-inside.png", "link.png", "linked/secret.png", "gone.png", "damaged.png", "loop.png"]
    (place / "loop.png").symlink_to(place / "loop.png")
    collection = made(torch.eye(7), paths, place)
    red = [np.asarray(Image.open(io.BytesIO(collection.jpeg(number, 160))))[80, 40, 0] > 250 for number in range(7)]
    assert red == [True, True, False, False, False, False, False]
    assert len({collection.jpeg(number, 160) for number in range(2, 7)}) == 1
    assert collection.missing() == ["link.png", "linked/secret.png", "gone.png", "loop.png"]


def test_what_is_missing_is_said():
    collection = made(torch.eye(3), ["a/1.png", "a/2.png", "b/3.png"])
    heading = views.heading([collection], len(collection.missing()))
    assert heading.startswith("`made` — 3 images of `nowhere`, 2 classes")
    assert "**3 of 3 images cannot be shown**" in heading
    assert "cannot be shown" not in views.heading([collection], 0)


# Two runs, and opening


def test_two_runs_side_by_side(runs, collection, folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other") / "one"  # of the same name
    shutil.copytree(runs[1], other, ignore=shutil.ignore_patterns("records", "figures", "index"))
    told = []
    with pytest.warns(UserWarning, match="skipped"):
        both = open_collections([runs[0], other], None, "cpu", told.append)
    assert [each.name for each in both] == ["one", f"{other.parent.name}/one"]
    assert told == [f"{other} has no index of {folder}: it is made, in {other / 'index'}"]
    query, ours, theirs = views.answers(both, 1, 7, 5)
    assert query["items"][0]["title"] == both[0].paths[7]
    assert [each["number"] for each in ours["items"]] == [each.number for each in both[0].nearest(7, 5)]
    assert [each["number"] for each in theirs["items"]] == [each.number for each in both[1].nearest(7, 5)]
    assert {each["which"] for each in theirs["items"]} == {1}
    query, ours, theirs = views.answers_to_file(both, folder / both[0].paths[7], 5)
    assert query["items"][0]["src"].startswith("data:image/jpeg;base64,")
    assert [each["number"] for each in theirs["items"]] == [each.number for each in both[1].nearest(7, 5)]
    one, two = (each.judged().right for each in both)
    _, count = views.pairs(both, 0, right=False, other=1)
    assert count == (~one & two).sum()


def test_an_index_of_another_folder_stays(runs, few, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(runs[0], run, ignore=shutil.ignore_patterns("records", "figures", "index"))
    with pytest.raises(DataError, match="no index; type: pml-ext index"):
        open_collections([run], None, "cpu")
    with pytest.raises(DataError, match="nowhere: no such folder"):
        open_collections([run], tmp_path / "nowhere", "cpu")
    told = []
    assert len(open_collections([run], few[0], "cpu", told.append)[0]) == 20
    assert len(open_collections([run], few[1], "cpu", told.append)[0]) == 25
    assert told == [
        f"{run} has no index of {few[0]}: it is made, in {run / 'index'}",
        f"{run} has no index of {few[1]}: it is made, in {run / 'browse'}",
    ]
    assert len(open_collections([run], few[0], "cpu", told.append)[0]) == 20
    assert len(open_collections([run], few[1], "cpu", told.append)[0]) == 25
    assert len(told) == 2
    assert load_run(run, "cpu").gallery().embedded.folder == few[0].resolve()


def test_a_folder_that_is_gone_is_looked_at_without_pictures(runs, few, tmp_path):
    run, place = tmp_path / "run", tmp_path / "photos"
    shutil.copytree(runs[0], run, ignore=shutil.ignore_patterns("records", "figures", "index"))
    shutil.copytree(few[0], place)
    open_collections([run], place, "cpu", lambda _: None)
    os.rename(place, tmp_path / "elsewhere")
    (collection,) = open_collections([run], None, "cpu")
    assert len(collection.missing()) == 20
    assert len(collection.nearest(0, 4)) == 4
    assert size_of(collection.jpeg(0, 160)) == ("JPEG", (160, 160))
