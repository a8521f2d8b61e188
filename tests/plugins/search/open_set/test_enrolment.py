"""Enrolment: copies in the indexed folder, once each, under names of any kind."""

import concurrent.futures
import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from pml_ext import load_run
from pml_ext.errors import ConfigError, DataError
from pml_ext_search.collection.class_folders import ClassFolders
from pml_ext_search.embedding.embedding import ImageEmbedder
from pml_ext_search.open_set.enrolled_folder import folder_of


def test_enrolled_photographs_are_indexed_once(enrolling):
    run, images, files = enrolling
    done = run.enroll(files, "Ünal & 'Co' $HOME")
    assert (len(done.copied), done.images, done.changes.new, done.changes.same) == (4, 24, 4, 20)
    embedded = run.indexed_images()
    assert [path for path, name in zip(embedded.paths, embedded.classes, strict=True) if name == done.name] == sorted(
        done.copied
    )
    for path, file in zip(done.copied, files, strict=True):
        assert (images / path).read_bytes() == file.read_bytes()
    again = run.enroll([files[0].parent.parent], "Ünal & 'Co' $HOME")
    assert (again.copied, sorted(again.there), again.images) == ([], sorted(done.copied), 24)
    (answer,) = run.identify(shutil.copy(files[0], images.parent / "new.png"), radius=0.01, nearest="image")
    assert answer.name == done.name


def test_undoing_deletes_copies_and_no_other_photograph(enrolling):
    run, images, files = enrolling
    own = shutil.copy(files[3], images / "0" / "own one.png")
    done = run.enroll(files[:2], "0")
    command, _, again = done.undo.removeprefix("to undo: ").partition(" && ")
    assert again.startswith("pml-ext index")
    subprocess.run(command, shell=True, check=True)
    run.index()
    assert Path(own).exists()
    assert len(run.indexed_images().paths) == 21
    assert run.enroll([own], "0").undo == ""


@pytest.mark.parametrize("other", ["same class", "other class"])
def test_two_enrolments_at_once_neither_double_nor_merge(other, enrolling, tmp_path):
    """Both copy the same photographs, and two photographs of one name."""
    run, images, files = enrolling
    for number in range(2):
        place = tmp_path / f"camera {number}"
        place.mkdir()
        Image.new("L", (8, 8), 77 + number).save(place / "IMG_1.png")
    names = ["seal", "seal" if other == "same class" else "walrus"]
    runs = [run, load_run(run.folder, "cpu")]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        given = [[*files, tmp_path / f"camera {number}"] for number in range(2)]
        done = list(pool.map(lambda own, photographs, name: own.enroll(photographs, name), runs, given, names))
    found = sorted(path.relative_to(images).as_posix() for name in set(names) for path in (images / name).iterdir())
    assert found == sorted(done[0].copied + done[1].copied)
    assert len(found) == (6 if other == "same class" else 10)
    assert sorted(path for path in runs[0].indexed_images().paths if path.split("/")[0] in names) == found


@pytest.mark.parametrize(("made", "typed"), [("Zoe\u0308", "Zo\u00eb"), ("Zo\u00eb", "Zoe\u0308")])
def test_names_of_one_reading_are_one_class(made, typed, enrolling):
    run, images, files = enrolling
    (images / made).mkdir()
    shutil.copy(files[0], images / made)
    done = run.enroll(files[:2], typed)
    assert (len(done.copied), len(done.there)) == (1, 1)
    assert [path.name for path in images.iterdir() if path.name.startswith("Zo")] == [made]
    assert run.indexed_images().classes.count("Zo\u00eb") == 2
    (answer,) = run.query(files[3], 2, within=typed)
    assert len(answer.paths) == 2


@pytest.mark.parametrize("typed", ["zo\u00eb", "ZOE\u0308", " Zo\u00eb", "Zo\u00eb "])
def test_names_that_nearly_agree_ask_before_copying(typed, enrolling):
    run, images, files = enrolling
    run.enroll(files[:1], "Zo\u00eb")
    with pytest.raises(ConfigError, match="reads nearly the same; type its name, or first: mkdir -p") as error:
        run.enroll(files[1:2], typed)
    assert len([path for path in images.iterdir() if "z" in path.name.lower()]) == 1
    subprocess.run(str(error.value).partition("or first: ")[2], shell=True, check=True)
    assert run.enroll(files[1:2], typed).copied


def test_equal_names_of_other_photographs_are_kept_apart(enrolling, tmp_path):
    run, _, files = enrolling
    for number, file in enumerate(files[:3]):
        place = tmp_path / f"camera {number}"
        place.mkdir()
        shutil.copy(file, place / "IMG_1.png")
    done = run.enroll([tmp_path / f"camera {number}" / "IMG_1.png" for number in range(3)], "seal")
    assert done.copied == ["seal/IMG_1.png", "seal/IMG_1-2.png", "seal/IMG_1-3.png"]
    hidden = shutil.copy(files[3], tmp_path / ".hidden.png")
    assert run.enroll([hidden], "seal").copied == ["seal/hidden.png"]
    assert run.indexed_images().classes.count("seal") == 4


def test_companions_are_copied_with_their_photograph(enrolling, tmp_path):
    run, images, files = enrolling
    (images / "seal").mkdir()
    shutil.copy(images / "0" / "0000.png", images / "seal" / "IMG_1.PNG")
    shutil.copy(files[0], tmp_path / "IMG_1.png")
    for name in ("IMG_1.CR3", "IMG_1.png.xmp", "IMG_1.txt"):
        (tmp_path / name).write_text(name)
    names = ["seal/IMG_1-2.CR3", "seal/IMG_1-2.png.xmp"]
    given = [tmp_path / name for name in ("IMG_1.png.xmp", "IMG_1.png")]
    done = run.enroll(given, "seal")
    assert (done.copied, done.companions) == (["seal/IMG_1-2.png"], names)
    assert [(images / name).read_text() for name in names] == ["IMG_1.CR3", "IMG_1.png.xmp"]
    assert all(name in done.undo for name in names)
    (images / names[0]).unlink()  # as after a kill
    (images / names[1]).write_text("of somebody")
    again = run.enroll(given, "seal")
    assert (again.copied, again.companions, (images / names[1]).read_text()) == ([], names[:1], "of somebody")
    (tmp_path / "IMG_1.png").unlink()
    with pytest.raises(DataError, match="IMG_1.png.xmp"):
        run.enroll(given[:1], "seal")


def test_a_repeated_call_finishes_a_killed_enrolment(enrolling, monkeypatch):
    run, images, files = enrolling

    def killed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ImageEmbedder, "batches_of", killed)
        with pytest.raises(KeyboardInterrupt):
            run.enroll(files, "seal")
    assert len(run.indexed_images().paths) == 20  # the index is as before
    assert len(list((images / "seal").iterdir())) == 4
    done = run.enroll(files, "seal")
    assert (len(done.copied), len(done.there), done.images) == (0, 4, 24)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "wanted the name of a folder that is not hidden"),
        (" ", "wanted the name of a folder"),
        ("..", "wanted the name of a folder"),
        (".seal", "wanted the name of a folder"),
        ("../seal", "wanted the name of a folder"),
        ("/seal", "wanted the name of a folder"),
        ("a/b", "wanted a name without /"),
        ("a\nb", "without line breaks and backslashes"),
        ("a\\b", "without line breaks and backslashes"),
        ("é" * 200, "at most 255 bytes"),
        ("train", "part of a split"),
    ],
)
def test_names_unfit_for_a_class_folder_are_refused(name, text):
    with pytest.raises(ConfigError, match=text):
        folder_of(name, ClassFolders(), "--as")


def test_names_go_where_the_index_reads_them():
    assert folder_of("seal", ClassFolders(below_splits=True), "--as") == "test/seal"
    assert folder_of("Greek/alpha", ClassFolders(levels=None), "--as") == "Greek/alpha"
    assert folder_of("a/b", ClassFolders(levels=2), "--as") == "a/b"
    with pytest.raises(ConfigError, match="wanted a name"):
        folder_of("a/b/c", ClassFolders(levels=2), "--as")


def test_nothing_is_copied_unless_all_can_be_read(enrolling, tmp_path):
    run, images, files = enrolling
    broken = tmp_path / "broken.png"
    broken.write_bytes(files[0].read_bytes()[:-40])
    without_ending = tmp_path / "photo"
    Image.open(files[0]).save(without_ending, "PNG")
    (tmp_path / "empty").mkdir()
    for given, text in (
        (broken, "broken.png"),
        (without_ending, "an index reads files that end in"),
        (tmp_path / "gone.png", "gone.png"),
        (tmp_path / "empty", "no image in it"),
    ):
        with pytest.raises(DataError, match=text):
            run.enroll([files[1], given], "seal")
    with pytest.raises(ConfigError, match="no photographs to enroll"):
        run.enroll([], "seal")
    assert not (images / "seal").exists()
    shutil.rmtree(images)
    with pytest.raises(DataError, match="the indexed folder is gone"):
        run.enroll(files, "seal")
