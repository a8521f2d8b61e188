"""Patterns that leave out files of a folder, and pages that are images of their own."""

import pytest
from PIL import Image

from pml_ext.errors import ConfigError, DataError
from pml_ext_train.data import FolderRules, folder, image_tensor, list_folder, open_image, read_image
from pml_ext_train.files import file_stat

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
        ("[a", ConfigError, "not a pattern of .gitignore; type for example"),
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
    shown = [float(read_image(tmp_path / page).float().mean()) for page in (f"cats/{name}", *pages)]
    assert shown == pytest.approx([60, 60, 120, 180], abs=3)
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
