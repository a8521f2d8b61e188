"""A collection against loops over its embeddings, the pictures that it gives away, and the search for its copies."""

import csv
import io
import json
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext import load_run, registry
from pml_ext.errors import ConfigError, DataError, PluginError
from pml_ext_browse import BrowsedRun, open_collections
from pml_ext_browse.collection import Part
from pml_ext_browse.copies import CopiesSearch
from pml_ext_copies.duplicates import find_duplicates
from pml_ext_copies.image_files import ImageFiles
from pml_ext_search.collection.embedded import Embedded
from pml_ext_train.data import list_folder
from pml_ext_train.files import write_json

from ..search.photographs import photograph, write_copies


def made(points, paths, folder="/nowhere", run=None):
    """A collection of made-up embeddings."""
    points = torch.nn.functional.normalize(torch.as_tensor(points, dtype=torch.float32))
    embedded = Embedded(Path(folder), paths, points, {})
    return BrowsedRun("made", SimpleNamespace(folder=run), embedded)


def pixels(content):
    return np.asarray(Image.open(io.BytesIO(content)))


def test_nearest_images_equal_the_answers_of_queries(pair, photos):
    collection = pair[0]
    collection.run.index(photos)
    for number in (0, 77, 199):
        nearest = collection.nearest(number, 6)
        (answer,) = collection.run.query(photos / collection.paths[number], 6)
        assert [each.path for each in nearest] == answer.paths
        assert [each.distance for each in nearest] == pytest.approx(answer.distances, abs=1e-3)
        assert [each.same_class for each in nearest] == [name == answer.query_class for name in answer.classes]
        assert collection.nearest_to_file(photos / collection.paths[number], 6) == nearest
    assert len(collection.nearest(0, 1000)) == 199


def test_duplicates_and_images_without_classes(tmp_path):
    write_json(tmp_path / "network.json", {})
    collection = made([[1, 0], [1, 0], [0, 1]], ["a/1.png", "a/2.png", "3.png"], run=tmp_path)
    assert [(each.number, each.distance, each.same_class) for each in collection.nearest(0, 5)] == [
        (1, 0.0, True),
        (2, pytest.approx(2**0.5), None),
    ]
    pairs, note = collection.leave_one_out()
    assert [each[:2] for each in pairs] == [(0, 1), (1, 0)]
    assert note == "2 of 3 images that have a class"
    assert collection.recall() == [("all classes (training classes unknown)", 2, 2)]
    with pytest.raises(DataError, match="right and wrong answers need two images with a class, a sub-folder each"):
        made(torch.eye(3), ["1.png", "2.png", "3.png"]).leave_one_out()


def test_unlabeled_copies_are_no_wrong_answers(tmp_path):
    """Eight images of two classes, each with an unlabeled copy beside it."""
    write_json(tmp_path / "network.json", {})
    points = torch.cat([torch.tensor([1.0, 0]) + torch.arange(4)[:, None] / 99, torch.tensor([0, 1.0]).expand(4, 2)])
    paths = [f"{'ab'[number // 4]}/{number}.png" for number in range(8)]
    collection = made(torch.cat([points, points]), [*paths, *(f"{number}.png" for number in range(8))], run=tmp_path)
    assert collection.recall() == [("all classes (training classes unknown)", 8, 8)]
    assert collection.confusions() == []
    assert all(pair.nearest < 8 for pair in collection.pairs())


def test_a_sub_folder_is_found_in_any_spelling():
    collection = made(torch.eye(4), ["Zoe\u0308/1.png", "Zo\u00eb/2.png", "other/<i>/3.png", "4.png"])
    assert collection.folders == ["Zo\u00eb", "other", "other/<i>"]
    for typed in collection.folders[0], "Zoe\u0308":
        assert collection.shown(Part(folder=typed)).tolist() == [0, 1]
    assert collection.class_names == ["Zo\u00eb", "other"]


def test_right_and_wrong_against_a_loop(pair, monkeypatch):
    collection = pair[0]
    pairs, note = collection.leave_one_out()
    points = collection.embeddings.numpy()
    for each in pairs:
        apart = np.linalg.norm(points - points[each.query], axis=1)
        apart[each.query] = np.inf
        assert each.distance == pytest.approx(apart.min(), abs=1e-3)
        assert apart[each.nearest] == pytest.approx(apart.min(), abs=1e-3)
        assert each.right == (collection.classes[each.query] == collection.classes[each.nearest])
    assert (len(pairs), note) == (200, "all 200 images")
    assert [each.distance for each in pairs] == sorted(each.distance for each in pairs)
    wrong = [each for each in pairs if not each.right]
    query, retrieved, count = collection.confusions()[0]
    assert query != retrieved
    classes = [(collection.classes[each.query], collection.classes[each.nearest]) for each in wrong]
    assert count == classes.count((query, retrieved))
    monkeypatch.setattr("pml_ext_browse.collection.MIN_QUERIES", 20)
    monkeypatch.setattr("pml_ext_browse.collection.MAX_PAIRS", 0)
    few, note = BrowsedRun("few", collection.run, collection.embedded).leave_one_out()
    assert (len(few), note) == (20, "20 of 200 images, drawn at random")


def test_recall_of_unseen_classes_stands_by_itself(pair):
    """The run was trained on 0 to 9; the ones have a folder of another name, which it never saw."""
    collection = pair[0]
    unseen = np.array(collection.classes) == "price $5_$6"
    right = np.zeros(200, dtype=bool)
    for each in collection.leave_one_out()[0]:
        right[each.query] = each.right
        assert each.trained is not bool(unseen[each.query])
    assert collection.recall() == [
        ("classes of training", right[~unseen].sum(), (~unseen).sum()),
        ("unseen classes", right[unseen].sum(), unseen.sum()),
    ]


GREEK = ["Greek character01/1.png", "Greek character02/2.png"]


@pytest.mark.parametrize(
    ("recorded", "paths", "trained"),
    [
        (["Greek/character01"], GREEK, [True, False]),
        (["greek_character01"], GREEK, [True, False]),
        (["greek  character01"], GREEK, [True, False]),
        (["+", "C#"], ["+/1.png", "-/1.png", "C#/1.png", "C++/1.png"], [True, False, True, False]),
        (["beagle", "Golden Retriever"], ["beagle/1.png", "golden_retriever/1.png", "cat/1.png"], [True, True, False]),
        (["a-b"], ["a-b/1.png", "a b/1.png"], [True, False]),
    ],
)
def test_trained_classes_are_matched_by_name(tmp_path, recorded, paths, trained):
    write_json(tmp_path / "network.json", {"class_names": recorded})
    collection = made(torch.eye(len(paths)), paths, run=tmp_path)
    assert collection.trained == dict(zip(collection.classes, trained, strict=True))


def test_maps_of_samples_and_single_points(monkeypatch):
    monkeypatch.setattr("pml_ext_browse.collection.MAP_LIMITS", {"pca": 50})
    numbers, _, note = made(torch.randn(90, 4), [f"{number}.png" for number in range(90)]).projection("pca")
    assert (len(numbers), note) == (50, "50 of 90 images, drawn at random; principal components")
    _, places, note = made(torch.ones(5, 4), [f"{n}.png" for n in range(5)]).projection("pca")
    assert (places == 0.5).all()
    assert note == "All images; they lie on one point"


def test_files_outside_the_folder_have_no_picture(few):
    """Nor of one that is gone, or damaged: the same placeholder."""
    place = few.photos
    shutil.copy(few.secret, place / "inside.png")
    (place / "link.png").symlink_to(few.secret)
    (place / "linked").symlink_to(few.place)
    (place / "to-inside.png").symlink_to(place / "inside.png")
    (place / "damaged.png").write_bytes(b"\x89PNG")
    (place / "loop.png").symlink_to(place / "loop.png")
    paths = ["inside.png", "to-inside.png", "link.png", "linked/secret.png", "gone.png", "damaged.png", "loop.png"]
    collection = made(torch.eye(7), paths, place)
    green = [pixels(collection.jpeg(number, 160))[80, 40, 1] > 240 for number in range(7)]
    assert green == [True, True, False, False, False, False, False]
    assert len({collection.jpeg(number, 160) for number in range(2, 7)}) == 1
    assert collection.missing == ["link.png", "linked/secret.png", "gone.png", "loop.png"]
    assert pixels(collection.jpeg(0, 160)).shape == (160, 160, 3)  # 8 x 8, twenty times


def test_a_folder_needs_no_index(few, photos):
    told = []
    with pytest.raises(DataError, match="no index; type: pml-ext index"):
        open_collections([few.run], None, "cpu")
    with pytest.raises(DataError, match="nowhere: no such folder"):
        open_collections([few.run], few.place / "nowhere", "cpu", told.append)
    load_run(few.run, "cpu").index(few.photos)
    assert len(open_collections([few.run], photos, "cpu", told.append)[0]) == 200
    assert told[-1] == f"{photos}: embedding the images that {few.run / 'collection'} does not have"
    assert not (few.run / "browse").exists()
    few.photos.rename(few.place / "elsewhere")  # looked at without pictures
    (collection,) = open_collections([few.run], None, "cpu")
    assert len(collection.missing) == 20
    assert len(collection.nearest(0, 4)) == 4


def test_indexes_of_different_folders_are_refused(few, trained, tmp_path):
    load_run(few.run, "cpu").index(few.photos)
    other = shutil.copytree(few.run, tmp_path / "other", ignore=shutil.ignore_patterns("collection"))
    images = shutil.copytree(few.photos, tmp_path / "elsewhere")
    load_run(other, "cpu").index(images)
    with pytest.raises(ConfigError, match=f"different folders, .*{images.name}.*; name one FOLDER for both"):
        open_collections([few.run, other], None, "cpu")


def test_an_empty_store_is_refused(few, tmp_path):
    pytest.importorskip("lancedb", reason="needs the extra lancedb")
    load_run(few.run, "cpu").index(few.photos)
    with pytest.raises(DataError, match="no images of .* in it; type: pml-ext index"):
        open_collections([few.run], None, "cpu", store=f"lancedb:{tmp_path / 'store'}")


def test_without_search_the_page_names_the_plugin(trained, monkeypatch):
    monkeypatch.setenv("PML_EXT_BLOCK", "search")
    with registry.isolated(), pytest.raises(PluginError, match="browse needs the plugin 'search', which is blocked"):
        open_collections([trained / "one"], device="cpu")


def test_a_sub_folder_is_searched_alone(pair, photos):
    """As if there were no other images, but that numbers stay."""
    collection = pair[0]
    inside = [number for number, path in enumerate(collection.paths) if path.startswith("3/")]
    assert collection.shown(Part(folder="3")).tolist() == inside
    points = collection.embeddings.numpy()
    for query in (0, inside[4]):
        apart = np.linalg.norm(points - points[query], axis=1)
        others = sorted((apart[number], number) for number in inside if number != query)
        nearest = collection.nearest(query, 5, "3")
        assert [each.number for each in nearest] == [number for _, number in others[:5]]
        assert collection.nearest_to_file(photos / collection.paths[query], 5, "3") == nearest
    assert len(collection.nearest(inside[0], 500, "3")) == len(inside) - 1
    assert collection.others_of_class(collection.paths[inside[0]], "3") == len(inside) - 1
    assert collection.others_of_class(collection.paths[inside[0]], "4") == 0
    numbers, _, note = collection.projection("pca", Part(folder="3"))
    assert numbers.tolist() == inside
    assert note.startswith("All images")
    assert all(pair.query in inside for pair in collection.pairs(Part(folder="3")))
    assert sum(count for _, _, count in collection.recall(Part(folder="3"))) == len(inside)
    assert collection.pairs() == collection.leave_one_out()[0]
    with pytest.raises(ConfigError, match="folder=33: no image of .* is below it"):
        collection.shown(Part(folder="33"))


def test_sub_folders_are_not_searched_in_stores():
    collection = made(torch.eye(4), ["a/1.png", "a/2.png", "ab/3.png", "4.png"])
    collection.store = SimpleNamespace(search=None)
    assert [each.path for each in collection.nearest(0, 9, "a")] == ["a/2.png"]


@pytest.fixture
def folder(tmp_path):
    """Photographs of two sub-folders: eight versions of each of two, and one of the same bytes in the other folder."""
    place = tmp_path / "photos"
    for number in range(2):
        write_copies(place / "one", number)
    (place / "two" / "deep").mkdir(parents=True)
    for number in range(5, 8):
        photograph(number).save(place / "two" / f"{number}.png")
    shutil.copy(place / "one" / "00-original.png", place / "two" / "deep" / '<img src=x onerror="alert(1)">.png')
    photograph(9).save(tmp_path / "secret.png")
    (place / "two" / "link.png").symlink_to(tmp_path / "secret.png")
    photograph(9).save(place / "two" / "secret.png")  # a copy of what the link leads to
    return place


@pytest.fixture
def copies(folder):
    paths = list_folder(folder).names
    return CopiesSearch(made(torch.eye(len(paths)), paths, folder))


def found_by(copies, *options):
    copies.begin(*options)
    copies.thread.join()
    return copies


def test_the_groups_are_those_of_the_command(copies, folder):
    assert copies.state.phase == "none"
    with pytest.raises(DataError, match="have not been looked for"):
        copies.shown(0, 9)
    found_by(copies)
    names = [name for name in list_folder(folder).names if name != "two/link.png"]  # it leads outside
    wanted = find_duplicates(ImageFiles(folder, names))
    assert copies.state.phase == "done"
    assert (copies.state.images, copies.state.read) == (len(names), len(names) - 1)  # equal bytes are read once
    assert len(copies.found.groups) == len(wanted.groups) == 3
    groups = copies.shown(0, 9)
    assert [each.group.kind for each in groups] == ["exact", "near", "near"]
    for each, other in zip(groups, wanted.groups, strict=True):
        assert list(each.group.images) == other.images
        assert [copies._collection.paths[number] for number in each.numbers] == [image.path for image in other.images]
    assert copies.shown(1, 1) == groups[1:2]
    assert "3 groups with 15 of 21 images to spare, " in copies.found.summary()
    assert f"{wanted.space:,} bytes" in copies.found.summary()
    assert [group.key for group in found_by(copies).shown(0, 9)] == [group.key for group in groups]


def test_a_sub_folder_a_rule_and_a_radius(copies):
    found_by(copies, "two")
    assert len(copies.found.groups) == 0
    assert "No copies among 5 images; near is within " in copies.found.summary()
    found_by(copies, "one", "least-compressed", 1e-5)
    assert len(copies.found.groups) == 0
    assert copies.state.radius == 1e-5
    found_by(copies, "one", "least-compressed")
    for group in copies.found.groups:
        kept, *others = group.images
        assert all(
            kept.bytes / (kept.width * kept.height) >= each.bytes / (each.width * each.height) for each in others
        )


def test_without_copies_the_page_names_the_plugin(copies, monkeypatch):
    monkeypatch.setenv("PML_EXT_BLOCK", "copies")
    with registry.isolated():
        found_by(copies)
    assert copies.state.phase == "failed"
    assert "copies in pml-ext browse needs the plugin 'copies', which is blocked" in copies.state.problem


def test_what_is_kept_is_a_file(copies):
    exact, near, other = found_by(copies).shown(0, 9)
    shown = [exact.key, near.key]
    kept = [f"{exact.key}.1", f"{near.key}.0", f"{near.key}.3", "of-an-earlier-search.7"]
    rows = list(csv.DictReader(io.StringIO(copies.as_text(shown, kept, "csv"))))
    keep = [(row["group"], row["path"]) for row in rows if row["keep"] == "yes"]
    chosen = [("1", exact.group.images[1]), ("2", near.group.images[0]), ("2", near.group.images[3])]
    assert sorted(keep) == sorted((group, image.path) for group, image in [*chosen, ("3", other.group.images[0])])
    assert len(rows) == 2 + 8 + 8
    told = json.loads(copies.as_text(shown, kept, "json"))
    assert told["groups"][0]["keep"] == exact.group.images[1].path == 'two/deep/<img src=x onerror="alert(1)">.png'
    assert near.group.images[3].path not in [image["path"] for image in told["groups"][1]["images"]]
    assert {*told["groups"][0]["images"][0]} == {"path", "distance", "bytes", "width", "height", "differs"}
    assert copies.as_text([], [], "csv") == copies._found.as_csv()


def test_choices_that_are_none_are_refused(copies):
    exact, near, _ = found_by(copies).shown(0, 9)
    for text in (f"{exact.key}.2", f"{exact.key}.-1", f"{exact.key}.x", exact.key, f"{exact.key}.{'9' * 5000}"):
        with pytest.raises(ConfigError, match="wanted the key of a group"):
            copies.chosen([], [text])
    with pytest.raises(ConfigError, match="group 2: no image is kept"):
        copies.chosen([exact.key, near.key], [f"{exact.key}.0"])
    with pytest.raises(ConfigError, match="belong to an earlier search"):
        copies.chosen([exact.key, "1234"], [f"{exact.key}.0"])


def test_a_search_can_be_stopped_and_begun_again(copies, monkeypatch):
    read = threading.Event()
    go_on = threading.Event()
    change = CopiesSearch._change

    def slowly(self, **changes):
        change(self, **changes)
        if "read" in changes:
            read.set()
            go_on.wait()

    monkeypatch.setattr(CopiesSearch, "_change", slowly)
    copies.begin("one")
    read.wait()
    assert copies.state[:3] == ("running", 1, 16)
    copies.begin("two")  # one at a time
    assert copies.state.folder == "one"
    copies.stop()
    go_on.set()
    copies.thread.join()
    assert copies.state.phase == "stopped"
    with pytest.raises(DataError, match="have not been looked for"):
        len(copies.found.groups)
    assert len(found_by(copies, "one").found.groups) == 2


def test_a_failed_search_says_why(copies, folder, monkeypatch):
    shutil.rmtree(folder)
    found_by(copies)
    assert copies.state.phase == "failed"
    assert "no image files below" in copies.state.problem
    monkeypatch.setattr(CopiesSearch, "_find", lambda self: 1 / 0)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    assert found_by(copies).state.problem == "ZeroDivisionError: division by zero"
