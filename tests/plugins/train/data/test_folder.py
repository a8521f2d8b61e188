"""Folders of images: how they are split, and what is refused."""

import os
import shutil

import pytest

from pml_ext.errors import DataError
from pml_ext_train.data import (
    folder,
)

from .made_up import photos


def test_a_folder_is_split_by_class_or_by_image(tmp_path):
    place = photos(tmp_path / "photos")
    by_class = folder(path=str(place))
    assert len(set(by_class.train.labels)) == len(set(by_class.test.labels)) == 2
    assert not set(by_class.train.labels) & set(by_class.test.labels)
    by_image = folder(path=str(place), split="image", train_fraction=1 / 3)
    assert [int((by_image.train.labels == label).sum()) for label in range(4)] == [2] * 4
    assert not set(by_image.train.paths) & set(by_image.test.paths)
    assert by_image.train.class_names == [f"class{label}" for label in range(4)]
    image, label = by_class.train[0]
    assert tuple(image.shape) == (3, 16, 20)
    assert by_class.train.paths[0].parent.name == f"class{label}"
    assert folder(tmp_path, path="photos").train.paths == by_class.train.paths


def test_two_spellings_of_a_name_are_one_class(tmp_path):
    place = photos(tmp_path / "photos")
    (place / "class0").rename(place / "Zo\u00eb")
    (place / "class1").rename(place / "Zoe\u0308")
    (place / "class2").rename(place / "CLASS3")
    splits = folder(path=str(place), split="image")
    assert splits.train.class_names == ["CLASS3", "Zo\u00eb", "class3"]
    assert "the classes 'CLASS3' and 'class3' differ in case or blanks alone" in splits.note


def test_folders_inside_of_classes_are_named(tmp_path):
    photos(tmp_path / "birds")
    photos(tmp_path / "tools", classes=2)
    outer = folder(path=str(tmp_path), split="image")
    assert outer.train.class_names == ["birds", "tools"]
    assert "is a folder inside of a class's folder" in outer.note
    assert "--set data.classes=leaf" in outer.note
    leaf = folder(path=str(tmp_path), split="image", classes="leaf")
    assert (leaf.train.class_names[3:5], leaf.note) == (["birds/class3", "tools/class0"], "")
    assert folder(path=str(tmp_path / "birds")).note == ""
    with pytest.raises(DataError, match="one class to train with; .*--set data.split=image"):
        folder(path=str(tmp_path))
    (tmp_path / "tools").rename(tmp_path / "birds" / "class0" / "tools")
    with pytest.raises(DataError, match="found 1 class, birds; --set data.classes=leaf"):
        folder(path=str(tmp_path))


def test_runs_sheets_and_odd_files_are_no_classes(tmp_path):
    place = photos(tmp_path / "photos")
    names = folder(path=str(place), split="image").train.class_names
    run = place / "run 1"
    for name in ("figures", "checkpoints"):
        (run / name).mkdir(parents=True)
    (run / "recipe.toml").write_text("")
    (place / "class0" / "clusters.csv").write_text(
        "path,cluster,distance_to_center,class,sheet\na.png,0,0.1,,cluster-000.png\nb.png,1,0.1,,cluster-001.png\n"
    )
    image = next((place / "class1").iterdir())
    for copy in (run / "figures" / "curve.png", *(place / "class0" / f"{name}.png" for name in ("cluster-001", "own"))):
        shutil.copy(image, copy)
    os.mkfifo(place / "class1" / "pipe.png")
    (place / "class1" / "loop.png").symlink_to("loop.png")
    splits = folder(path=str(place), split="image")
    found = {path.name for path in [*splits.train.paths, *splits.test.paths]}
    assert splits.train.class_names == names
    assert found & {"curve.png", "cluster-001.png", "own.png", "pipe.png", "loop.png"} == {"own.png"}
    assert splits.note == f"{run} is the folder of a run, whose figures are not read as images"


def test_train_and_test_folders_are_used_as_they_are(tmp_path):
    photos(tmp_path / "train", classes=3)
    photos(tmp_path / "test", classes=5, images=2)
    splits = folder(path=str(tmp_path))
    assert (len(splits.train), len(splits.test)) == (18, 10)
    assert splits.train.class_names == splits.test.class_names == [f"class{label}" for label in range(5)]


def test_folders_that_do_not_serve(tmp_path):
    with pytest.raises(DataError, match="absent: no such folder"):
        folder(path=str(tmp_path / "absent"))
    (tmp_path / "empty" / "cats").mkdir(parents=True)
    with pytest.raises(DataError, match="no images in sub-folders"):
        folder(path=str(tmp_path / "empty"))
    photos(tmp_path / "one", classes=1)
    with pytest.raises(DataError, match="found 1 class"):
        folder(path=str(tmp_path / "one"))


def test_a_class_folder_that_cannot_be_listed_is_named(tmp_path, monkeypatch):
    place = photos(tmp_path / "photos")
    scandir = os.scandir

    def refused(path="."):
        if os.fspath(path).endswith("class2"):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(DataError, match="class2: cannot be listed .*permissions"):
        folder(path=str(place))


@pytest.mark.parametrize(("name", "value"), [("split", "image"), ("train_fraction", 0.9), ("seed", 0)])
def test_settings_of_a_split_are_noted_where_the_folder_has_one(tmp_path, name, value):
    photos(tmp_path / "train")
    photos(tmp_path / "test")
    splits = folder(path=str(tmp_path), **{name: value})
    assert splits.note == f"{tmp_path} has the folders train and test, so that {name} has no effect"
    assert splits.train.paths == folder(path=str(tmp_path)).train.paths


@pytest.mark.parametrize("names", [["train", "val"], ["Train", "Test"], ["train", "validation"], ["valid"]])
@pytest.mark.parametrize("classes", ["outer", "leaf"])
def test_splits_of_other_names_are_no_classes(tmp_path, names, classes):
    for name in names:
        photos(tmp_path / name, classes=2)
    found = " and ".join(sorted(names))
    with pytest.raises(
        DataError, match=f"found {found}, which are splits and no classes; wanted the two folders train"
    ):
        folder(path=str(tmp_path), classes=classes)
    photos(tmp_path / "cats")
    assert "cats" in folder(path=str(tmp_path), split="image").train.class_names


def test_a_folder_of_validation_images_is_named(tmp_path):
    for name in ("train", "test", "val"):
        photos(tmp_path / name)
    splits = folder(path=str(tmp_path))
    assert splits.note == f"{tmp_path / 'val'}: not used; train and test are the split"
    assert len(splits.train) + len(splits.test) == 48


def test_images_beside_the_classes_are_named(tmp_path):
    place = photos(tmp_path / "photos")
    for name in ("z.png", "a.png", "notes.txt"):
        (place / name).write_bytes(b"an image")
    note = folder(path=str(place), split="image").note
    assert note == (
        f"images beside the folders of classes have no class: 2, {place / 'a.png'} first; put them into one"
    )
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "1.png").touch()
    with pytest.raises(DataError, match=r"no images in sub-folders; .* have no class: 1, .*1.png first"):
        folder(path=str(tmp_path / "flat"))


def test_images_that_are_not_read_are_named(tmp_path):
    place = photos(tmp_path / "photos")
    photos(tmp_path / "elsewhere", classes=1)
    (place / "class9").symlink_to(tmp_path / "elsewhere" / "class0")
    for name in ("b.JXL", "a.dng", "notes.txt"):
        (place / "class1" / name).write_bytes(b"of another format")
    splits = folder(path=str(place), split="image")
    assert splits.train.class_names == [f"class{label}" for label in range(4)]
    links, others = splits.note.split("; ")[::2]
    assert links == f"links to folders are not followed: 1, {place / 'class9'} first"
    assert others == f"images of these endings are not read: 2, {place / 'class1' / 'a.dng'} first"
    (tmp_path / "phone" / "cats").mkdir(parents=True)
    (tmp_path / "phone" / "cats" / "1.nef").touch()
    with pytest.raises(DataError, match=r"no images in sub-folders; wanted .*1\.nef first; save them as \.jpg"):
        folder(path=str(tmp_path / "phone"))
