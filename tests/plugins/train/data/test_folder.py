"""Folders of images: how they are split, and what is refused."""

import os
import shutil

import pytest

from pml_ext.errors import DataError
from pml_ext_train.data import folder

from .made_up import photos


def test_a_folder_is_split_by_class_or_image(tmp_path):
    place = photos(tmp_path / "photos")
    by_class = folder(path=str(place))
    assert len(set(by_class.train.labels)) == len(set(by_class.test.labels)) == 2
    assert not set(by_class.train.labels) & set(by_class.test.labels)
    by_image = folder(path=str(place), split="image", train_fraction=1 / 3)
    assert [int((by_image.train.labels == label).sum()) for label in range(4)] == [2] * 4
    assert not set(by_image.train.paths) & set(by_image.test.paths)
    assert by_image.train.class_names == [f"class{label}" for label in range(4)]
    image, label = by_class.train[0]
    assert (tuple(image.shape), by_class.train.paths[0].parent.name) == ((3, 16, 20), f"class{label}")
    assert folder(tmp_path, path="photos").train.paths == by_class.train.paths


def test_two_spellings_of_a_name_are_one_class(tmp_path):
    place = photos(tmp_path / "photos")
    for old, new in (("class0", "Zo\u00eb"), ("class1", "Zoe\u0308"), ("class2", "CLASS3")):
        (place / old).rename(place / new)
    splits = folder(path=str(place), split="image")
    assert splits.train.class_names == ["CLASS3", "Zo\u00eb", "class3"]
    assert "the classes 'CLASS3' and 'class3' differ only in case or blanks" in splits.note


def test_folders_inside_class_folders_are_reported(tmp_path):
    photos(tmp_path / "birds")
    photos(tmp_path / "tools", classes=2)
    outer = folder(path=str(tmp_path), split="image")
    assert outer.train.class_names == ["birds", "tools"]
    assert "is inside a class folder, and its images belong to that class; --set data.classes=leaf" in outer.note
    leaf = folder(path=str(tmp_path), split="image", classes="leaf")
    assert (leaf.train.class_names[3:5], leaf.note) == (["birds/class3", "tools/class0"], "")
    assert folder(path=str(tmp_path / "birds")).note == ""
    with pytest.raises(DataError, match="one class to train with; .*--set data.split=image"):
        folder(path=str(tmp_path))
    (tmp_path / "tools").rename(tmp_path / "birds" / "class0" / "tools")
    with pytest.raises(DataError, match="found 1 class, birds; --set data.classes=leaf"):
        folder(path=str(tmp_path))


def test_runs_sheets_and_odd_files_are_skipped(tmp_path):
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


@pytest.mark.parametrize(
    ("classes", "message"),
    [(None, "place: no such folder"), (0, "place: no images in sub-folders"), (1, "found 1 class, class0; it needs")],
)
def test_a_folder_needs_images_of_several_classes(tmp_path, classes, message):
    if classes is not None:
        (photos(tmp_path / "place", classes) / "empty").mkdir(parents=True)
    with pytest.raises(DataError, match=message):
        folder(path=str(tmp_path / "place"))


def test_an_unreadable_class_folder_is_an_error(tmp_path, monkeypatch):
    place = photos(tmp_path / "photos")
    scandir = os.scandir

    def refused(path="."):
        if os.fspath(path).endswith("class2"):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(DataError, match=r"class2: cannot be read \(Permission denied\); check its permissions"):
        folder(path=str(place))


@pytest.mark.parametrize(("name", "value"), [("split", "image"), ("train_fraction", 0.9), ("seed", 0)])
def test_train_and_test_folders_replace_split_settings(tmp_path, name, value):
    photos(tmp_path / "train", classes=3)
    photos(tmp_path / "test", classes=5, images=2)
    photos(tmp_path / "val")
    splits = folder(path=str(tmp_path), **{name: value})
    assert (len(splits.train), len(splits.test)) == (18, 10)
    assert splits.train.class_names == splits.test.class_names == [f"class{label}" for label in range(5)]
    unused = f"{tmp_path / 'val'}: not used; train and test are the split"
    assert splits.note == f"{unused}; {tmp_path} has the folders train and test, so {name} has no effect"


@pytest.mark.parametrize("names", [["train", "val"], ["Train", "Test"], ["train", "validation"], ["valid"]])
@pytest.mark.parametrize("classes", ["outer", "leaf"])
def test_splits_with_other_names_are_not_classes(tmp_path, names, classes):
    for name in names:
        photos(tmp_path / name, classes=2)
    with pytest.raises(DataError, match=f"{' and '.join(sorted(names))} are splits, not classes; name the two folders"):
        folder(path=str(tmp_path), classes=classes)
    photos(tmp_path / "cats")
    assert "cats" in folder(path=str(tmp_path), split="image").train.class_names


def test_images_that_are_not_read_are_reported(tmp_path):
    place = photos(tmp_path / "photos")
    photos(tmp_path / "elsewhere", classes=1)
    (place / "class9").symlink_to(tmp_path / "elsewhere" / "class0")
    for name in ("class1/b.JXL", "class1/a.dng", "class1/notes.txt", "z.png", "a.png"):
        (place / name).write_bytes(b"of another format")
    splits = folder(path=str(place), split="image")
    assert splits.train.class_names == [f"class{label}" for label in range(4)]
    assert splits.note.split("; ")[::2] == [
        f"links to folders are not followed: 1, {place / 'class9'} first",
        f"images beside the class folders have no class: 2, {place / 'a.png'} first",
        f"these image formats are not read: 2, {place / 'class1' / 'a.dng'} first",
    ]


@pytest.mark.parametrize(
    ("name", "message"), [("cats/1.nef", r"1\.nef first; save them as \.jpg"), ("1.png", "have no class: 1, .*1.png")]
)
def test_a_folder_without_readable_images_says_why(tmp_path, name, message):
    (tmp_path / "cats").mkdir()
    (tmp_path / name).touch()
    with pytest.raises(DataError, match=f"no images in sub-folders; .*{message}"):
        folder(path=str(tmp_path))
