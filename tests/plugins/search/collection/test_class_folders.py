"""Classes of images by their sub-folders, as the run has them."""

import pytest

from pml_ext_search.collection.class_folders import ClassFolders
from pml_ext_search.query.search_index import _class_levels

from ..drawings import write_some


@pytest.mark.parametrize(
    ("levels", "paths", "classes"),
    [
        (1, ["cats/a/1.png", "dogs/2.png", "3.png"], ["cats", "dogs", ""]),
        (2, ["cats/a/old/1.png", "dogs/2.png"], ["cats/a", "dogs"]),
        (None, ["cats/a/old/1.png", "dogs/2.png"], ["cats/a/old", "dogs"]),
        (1, ["train/cats/1.png", "test/dogs/old/2.png", "val/cats/3.png"], ["cats", "dogs", "cats"]),
        (None, ["train/cats/a/1.png", "test/dogs/2.png", "test/3.png"], ["cats/a", "dogs", ""]),
        (1, ["train/1.png", "test/2.png", "cats/3.png"], ["train", "test", "cats"]),
        (1, ["x.tar/cats/1.png", "x.tar/2.png"], ["cats", ""]),
    ],
)
def test_classes_are_named_by_sub_folders(levels, paths, classes):
    folders = ClassFolders.of_paths(paths, levels)
    assert [folders.class_of(path) for path in paths] == classes
    for path, name in zip(paths, classes, strict=True):
        if name and not path.startswith("x.tar"):  # in shards, classes lie inside of the shard
            assert any(path.startswith(f"{place}/") for place in folders.places_of(name))


def test_an_index_names_classes_as_its_run_does(make, tmp_path):
    assert _class_levels("folder:photos", {}) == 1
    assert _class_levels("folder:photos", {"levels": 2}) == 2
    assert _class_levels("folder:photos", {"classes": "leaf"}) is None
    assert _class_levels("digits", {}) == 1
    write_some(tmp_path / "photos" / "train", range(14))
    write_some(tmp_path / "photos" / "test" / "outer", range(14, 21))
    run = make()
    run.images.class_levels = 2
    gallery = run.index(tmp_path / "photos")
    trained = {f"class {number}" for number in range(7)}
    assert {*gallery.embedded.classes} == trained | {f"outer/{name}" for name in trained}
    (answer,) = run.query(tmp_path / "photos" / "test" / "outer" / "class 0" / "0014.png", k=2, within="class 0")
    assert answer.query_class == "outer/class 0"
    assert sorted(answer.paths) == ["train/class 0/0000.png", "train/class 0/0007.png"]
    assert answer.classes == ["class 0", "class 0"]
