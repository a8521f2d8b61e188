"""Labeled images and their splits; folders of images: what is left out, pages, and files beside a photograph."""

import os
from importlib.metadata import version

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext.errors import ConfigError, DataError
from pml_ext_train.data import (
    Companions,
    DataSplits,
    FolderRules,
    LabeledImages,
    companions_in,
    digits,
    folder,
    hold_out_classes,
    image_tensor,
    list_folder,
    open_image,
    read_image,
)
from pml_ext_train.files import file_stat

from .made_up import photos


@pytest.fixture
def album(tmp_path):
    return photos(tmp_path / "photos")


def test_a_folder_is_split_by_class_or_image(tmp_path, album):
    by_class = folder(path=str(album))
    assert len(set(by_class.train.labels)) == len(set(by_class.test.labels)) == 2
    assert not set(by_class.train.labels) & set(by_class.test.labels)
    by_image = folder(path=str(album), split="image", train_fraction=1 / 3)
    assert [int((by_image.train.labels == label).sum()) for label in range(4)] == [2] * 4
    assert not set(by_image.train.paths) & set(by_image.test.paths)
    assert by_image.train.class_names == [f"class{label}" for label in range(4)]
    image, label = by_class.train[0]
    assert (tuple(image.shape), by_class.train.paths[0].parent.name) == ((3, 16, 20), f"class{label}")
    assert folder(tmp_path, path="photos").train.paths == by_class.train.paths


def test_two_spellings_of_a_name_are_one_class(album):
    for old, new in (("class0", "Zo\u00eb"), ("class1", "Zoe\u0308"), ("class2", "CLASS3")):
        (album / old).rename(album / new)
    splits = folder(path=str(album), split="image")
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


def test_runs_sheets_and_odd_files_are_skipped(album):
    names = folder(path=str(album), split="image").train.class_names
    run = album / "run 1"
    for name in ("figures", "checkpoints"):
        (run / name).mkdir(parents=True)
    (run / "recipe.toml").write_text("")
    (album / "class0" / "clusters.csv").write_text(
        "path,cluster,distance_to_center,class,sheet\na.png,0,0.1,,cluster-000.png\nb.png,1,0.1,,cluster-001.png\n"
    )
    image = next((album / "class1").iterdir())
    for copy in (run / "figures" / "curve.png", *(album / "class0" / f"{name}.png" for name in ("cluster-001", "own"))):
        copy.write_bytes(image.read_bytes())
    os.mkfifo(album / "class1" / "pipe.png")
    (album / "class1" / "loop.png").symlink_to("loop.png")
    splits = folder(path=str(album), split="image")
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


def test_an_unreadable_class_folder_is_an_error(album, monkeypatch):
    scandir = os.scandir

    def refused(path="."):
        if os.fspath(path).endswith("class2"):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(DataError, match=r"class2: cannot be read \(Permission denied\); check its permissions"):
        folder(path=str(album))


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


def test_images_that_are_not_read_are_reported(tmp_path, album):
    photos(tmp_path / "elsewhere", classes=1)
    (album / "class9").symlink_to(tmp_path / "elsewhere" / "class0")
    for name in ("class1/b.JXL", "class1/a.dng", "class1/notes.txt", "z.png", "a.png"):
        (album / name).write_bytes(b"of another format")
    splits = folder(path=str(album), split="image")
    assert splits.train.class_names == [f"class{label}" for label in range(4)]
    assert splits.note.split("; ")[::2] == [
        f"links to folders are not followed: 1, {album / 'class9'} first",
        f"images beside the class folders have no class: 2, {album / 'a.png'} first",
        f"these image formats are not read: 2, {album / 'class1' / 'a.dng'} first",
    ]


@pytest.mark.parametrize(
    ("name", "message"), [("cats/1.nef", r"1\.nef first; save them as \.jpg"), ("1.png", "have no class: 1, .*1.png")]
)
def test_a_folder_without_readable_images_says_why(tmp_path, name, message):
    (tmp_path / "cats").mkdir()
    (tmp_path / name).touch()
    with pytest.raises(DataError, match=f"no images in sub-folders; .*{message}"):
        folder(path=str(tmp_path))


# Patterns that leave out files, and pages


NAMES = ["a.jpg", "b.png", "my thumbs/a.jpg", "notes.txt", "sub/a.jpg", "sub/deep/c.jpg", "sub/thumbs/d.jpg"]


@pytest.fixture
def place(tmp_path):
    for name in NAMES:
        (tmp_path / "place" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "place" / name).touch()
    return tmp_path / "place"


@pytest.mark.parametrize(
    ("patterns", "gone", "told"),
    [
        (["/a.jpg"], ["a.jpg"], "left out 1 image by /a.jpg"),
        (["thumbs/", "*.txt"], ["sub/thumbs/d.jpg"], "left out 1 folder by thumbs/, *.txt"),
        (["thumb*"], ["sub/thumbs/d.jpg"], "left out 1 folder by thumb*"),
        (["my thumbs"], ["my thumbs/a.jpg"], "left out 1 folder by my thumbs"),
        (["sub/**/c.jpg"], ["sub/deep/c.jpg"], "left out 1 image by sub/**/c.jpg"),
        (["a.jpg", "!/a.jpg"], ["my thumbs/a.jpg", "sub/a.jpg"], "left out 2 images by a.jpg, !/a.jpg"),
        (["sub/*", "!sub/deep/"], ["sub/a.jpg", "sub/thumbs/d.jpg"], "left out 2 images by sub/*, !sub/deep/"),
        (["b.png/", "a"], [], ": nothing matches 'b.png/', 'a'"),
        (["sub/", "sub/a.jpg"], ["sub/a.jpg", "sub/deep/c.jpg", "sub/thumbs/d.jpg"], "matches 'sub/a.jpg'"),
        (["*", "!*"], [], ""),
    ],
)
@pytest.mark.parametrize("by_file", [False, True])
def test_patterns_leave_out_what_git_ignores(place, patterns, gone, told, by_file):
    if by_file:
        (place / ".pml-ext-ignore").write_text("\n".join(["# made by hand", "", *patterns]), "utf-8-sig")
    listing = list_folder(place, FolderRules.of(() if by_file else patterns))
    assert listing.names == [name for name in NAMES if name not in (*gone, "notes.txt")]
    assert listing.left_out.startswith(f"{place}: " if told else "")
    assert (told.replace(", ".join(patterns), ".pml-ext-ignore") if by_file else told) in listing.left_out


def test_excluded_folders_are_not_opened(place, monkeypatch):
    opened = []
    real = list_folder.__globals__["visible_entries"]
    monkeypatch.setitem(
        list_folder.__globals__, "visible_entries", lambda *given: opened.append(given[0].name) or real(*given)
    )
    list_folder(place, FolderRules.of(["sub/"]))
    assert opened == ["place", "my thumbs"]


@pytest.mark.parametrize(
    ("pattern", "error", "text"),
    [
        ("*", DataError, r"no image is left; the patterns leave out 2 images and 2 folders by \*\. Change --exclude"),
        ("!", ConfigError, "--exclude '!': not a pattern of .gitignore"),
        pytest.param(
            "[a",
            ConfigError,
            "not a pattern of .gitignore; type for example",
            marks=pytest.mark.skipif(version("pathspec") < "1.1", reason="pathspec took it for a pattern until 1.1"),
        ),
    ],
)
def test_patterns_without_sense_are_refused(place, pattern, error, text):
    with pytest.raises(error, match=text):
        list_folder(place, FolderRules.of([pattern]))


def test_patterns_of_split_folders_begin_above_them(place):
    for name in ("train/a/1", "train/b/1", "train/raw/1", "test/a/1", "test/b/raw/2", "test/b/3"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 9)).save(place / f"{name}.png")
    splits = folder(path=str(place), exclude=["/train/raw", "test/b/raw/", "x"])
    assert (splits.train.class_names, len(splits.train), len(splits.test)) == (["a", "b"], 2, 2)
    assert splits.note == f"{place}: left out 2 folders by /train/raw, test/b/raw/, x; nothing else matches 'x'"
    with pytest.raises(DataError, match="no image is left"):
        folder(path=str(place), exclude=["train/*"])


def shades(file, count, **settings):
    first, *others = [Image.new("L", (12, 9 + number), 60 * number + 60) for number in range(count)]
    first.save(file, save_all=True, append_images=[each.resize(first.size) for each in others], **settings)


@pytest.mark.parametrize("name", ["scan.TIF", "clip.gif", "clip.png", "clip.webp", "clip.avif"])
def test_each_page_is_an_image(tmp_path, name):
    place = tmp_path / "cats" / name
    place.parent.mkdir()
    shades(place, 3, quality=100)
    shades(tmp_path / "cats" / "one.tif", 1)
    (tmp_path / "cats" / "zero.tif").write_bytes(b"no image")
    listing = list_folder(tmp_path, FolderRules(pages="all"))
    pages = [f"cats/{name}#{page}" for page in (1, 2, 3)]
    assert sorted(listing.names) == sorted([*pages, "cats/one.tif", "cats/zero.tif"])
    assert {stat for path, stat in zip(listing.names, listing.stats, strict=True) if "#" in path} == {file_stat(place)}
    assert file_stat(tmp_path / pages[2]) == file_stat(place)
    assert [float(read_image(tmp_path / page).float().mean()) for page in (f"cats/{name}", *pages)] == pytest.approx(
        [60, 60, 120, 180], abs=3
    )
    assert file_stat(tmp_path / "cats" / "gone.tif#2") is None
    with pytest.raises(DataError, match=r"#4: not a readable image"):
        read_image(tmp_path / f"cats/{name}#4")
    assert list_folder(tmp_path).names == sorted([f"cats/{name}", "cats/one.tif", "cats/zero.tif"])


def test_smaller_copies_of_a_page_are_not_pages(tmp_path):
    from PIL.TiffImagePlugin import ImageFileDirectory_v2

    about = ImageFileDirectory_v2()
    about[254] = 1
    large, small = Image.new("L", (20, 20)), Image.new("L", (10, 10))
    small.encoderinfo = {"tiffinfo": about}
    large.save(tmp_path / "levels.tif", save_all=True, append_images=[small])
    assert list_folder(tmp_path, FolderRules(pages="all")).names == ["levels.tif"]


def test_pages_that_cannot_be_counted_are_reported(tmp_path):
    shades(tmp_path / "cut.tif", 4)
    content = (tmp_path / "cut.tif").read_bytes()
    (tmp_path / "cut.tif").write_bytes(content[: len(content) // 2])
    names = list_folder(tmp_path, FolderRules(pages="all")).names
    assert names[:2] == ["cut.tif#1", "cut.tif#2"]
    with pytest.raises(DataError, match="not a readable image"), open_image(tmp_path / names[-1]) as image:
        image_tensor(image)


# Files beside a photograph


BESIDE = ["IMG_1.JPG", "IMG_1.PNG", "IMG_1.CR3", "IMG_1.JPG.xmp", "IMG_2.heic", "IMG_2.MOV", "IMG_3.cr2", "film.mp4"]


def test_companions_belong_to_photographs_of_their_stem():
    both = ["IMG_1.JPG", "IMG_1.PNG"]
    assert companions_in(BESIDE) == {
        "IMG_1.JPG": {"IMG_1.CR3": both, "IMG_1.JPG.xmp": ["IMG_1.JPG"]},
        "IMG_1.PNG": {"IMG_1.CR3": both},
        "IMG_2.heic": {"IMG_2.MOV": ["IMG_2.heic"]},
    }
    assert companions_in(["IMG_1.jpg", "IMG_1.txt"]) == {}


def test_companions_are_not_listed_but_other_files_are(tmp_path):
    (tmp_path / "below").mkdir()
    for name in BESIDE:
        (tmp_path / "below" / name).touch()
    (tmp_path / "IMG_2.heic").touch()
    (tmp_path / "IMG_2.raw").mkdir()  # a folder is no companion
    (tmp_path / "IMG_2.raw" / "in a folder.jpg").touch()
    listing = list_folder(tmp_path)
    assert listing.names == [
        "IMG_2.heic",
        "IMG_2.raw/in a folder.jpg",
        "below/IMG_1.JPG",
        "below/IMG_1.PNG",
        "below/IMG_2.heic",
    ]
    assert [*listing.others] == ["below/IMG_3.cr2", "below/film.mp4"]
    companions = Companions()
    assert companions.of(tmp_path / "IMG_2.heic") == {}
    assert [*companions.of(tmp_path / "below" / "IMG_2.heic")] == ["IMG_2.MOV"]


# Splits and labeled images


IMAGES = torch.zeros(2, 1, 4, 4, dtype=torch.uint8)


def part(images, labels):
    return LabeledImages(images, labels, ["a", "b"], channels=1)


def test_classes_are_held_out_by_seed_or_label():
    train = digits().train
    rest, held_out = hold_out_classes(train, 0.3, seed=3)
    assert (len(set(held_out.labels)), len(set(rest.labels))) == (3, 7)
    assert not set(rest.labels) & set(held_out.labels)
    assert set(hold_out_classes(train, 0.3, seed=4)[1].labels) != set(held_out.labels)
    rest, held_out = hold_out_classes(train, 0.3, which="last")
    assert (set(rest.labels.tolist()), set(held_out.labels.tolist())) == ({*range(7)}, {7, 8, 9})


def test_images_without_labels_are_not_tested():
    about = {"image_size": 4, "channels": 1, "labeled": False}
    images = part(IMAGES, [0, 0])
    assert DataSplits(images, **about).tested() == {}
    with pytest.raises(DataError, match="images without labels cannot be tested; leave out all but train"):
        DataSplits(images, images, **about)


@pytest.mark.parametrize(
    ("images", "labels", "text"),
    [
        (IMAGES, [1, 2], "labels of test are 1 to 2, but there are 2 class_names"),
        (IMAGES, [-1, 0], "labels of test are -1 to 0"),
        (IMAGES[:0], [], "test has no image"),
        (IMAGES.float(), [0, 1], r"images of test are torch.float32 .*; they must be uint8 \[N, 1, H, W\]"),
        (IMAGES.permute(0, 2, 3, 1), [0, 1], "images of test are torch.uint8 of shape"),
        (IMAGES.expand(2, 3, 4, 4), [0, 1], "images of test are torch.uint8 of shape"),
        (None, [], r"test is TensorDataset, not pml_ext\.plugin\.LabeledImages"),
    ],
)
def test_a_part_with_invalid_content_is_refused(images, labels, text):
    wrong = torch.utils.data.TensorDataset(IMAGES) if images is None else part(images, labels)
    with pytest.raises((ValueError, TypeError), match=text):
        DataSplits(part(IMAGES, [0, 1]), wrong, image_size=4, channels=1)


@pytest.mark.parametrize(
    ("images", "labels", "text"),
    [
        (IMAGES, [0.5, 1], r"labels must be integers \(indices into class_names\), not 0.5"),
        (IMAGES, [0, np.nan], "not nan"),
        (IMAGES, np.eye(2), r"must have one dimension, \[N\], not the shape \[2, 2\]"),
        (IMAGES, [0], "2 images, but 1 labels"),
        (IMAGES.numpy(), [0, 1], r"not a NumPy array; convert it with torch\.from_numpy"),
    ],
)
def test_labels_are_integers_one_per_image(images, labels, text):
    assert LabeledImages(IMAGES, [1.0, 0.0], ["a", "b"]).labels.tolist() == [1, 0]
    with pytest.raises((ValueError, TypeError), match=text):
        LabeledImages(images, labels, ["a", "b"])
