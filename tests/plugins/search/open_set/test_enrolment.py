"""Enrolled photographs are copied once; classes are renamed, joined, removed and undone without a loss."""

import concurrent.futures
import contextlib
import multiprocessing
import os
import shutil
import signal
import subprocess
import unicodedata
from pathlib import Path

import pytest
import torch
from PIL import Image

from pml_ext import load_run
from pml_ext.errors import ConfigError, DataError
from pml_ext_search.collection.class_folders import ClassFolders
from pml_ext_search.embedding.embedding import ImageEmbedder
from pml_ext_search.open_set.class_changes import REMOVED, change_class, undo_change
from pml_ext_search.open_set.class_moves import JOURNAL, former_names, read_moves
from pml_ext_search.open_set.enrolled_folder import folder_of

from ..conftest import full, write_digits

CHANGES = [("--rename", "1", "Zoë 1"), ("--join", "1", "2"), ("--remove", "1")]


@pytest.fixture
def enrolling(runs, tmp_path):
    """A run with an index of its own folder, and photographs to enroll."""
    run = load_run(shutil.copytree(runs[0], tmp_path / "run", ignore=lambda *_: ["collection"]), "cpu")
    write_digits(tmp_path / "images", range(20))
    write_digits(tmp_path / "photographs", range(100, 104))
    run.index(tmp_path / "images")
    return run, tmp_path / "images", sorted((tmp_path / "photographs").rglob("*.png"))


def test_enrolled_photographs_are_indexed_once(enrolling):
    run, images, files = enrolling
    done = run.enroll(files, "Ünal & 'Co' $HOME")
    assert (len(done.copied), done.images, done.changes.new, done.changes.same) == (4, 24, 4, 20)
    embedded = run.indexed_images()
    classes = dict(zip(embedded.paths, embedded.classes, strict=True))
    assert [path for path in classes if classes[path] == done.name] == sorted(done.copied)
    for path, file in zip(done.copied, files, strict=True):
        assert (images / path).read_bytes() == file.read_bytes()
    again = run.enroll([files[0].parent.parent], "Ünal & 'Co' $HOME")
    assert (again.copied, sorted(again.there), again.images) == ([], sorted(done.copied), 24)
    (answer,) = run.identify(shutil.copy(files[0], images.parent / "new.png"), radius=0.01, nearest="image")
    assert answer.name == done.name


def test_undoing_deletes_copies_and_no_other_photograph(enrolling):
    run, images, files = enrolling
    own = shutil.copy(files[3], images / "0" / "own one.png")
    command, _, again = run.enroll(files[:2], "0").undo.removeprefix("to undo: ").partition(" && ")
    assert again.startswith("pml-ext index")
    subprocess.run(command, shell=True, check=True)
    run.index()
    assert Path(own).exists()
    assert len(run.indexed_images().paths) == 21
    assert run.enroll([own], "0").undo == ""


@pytest.mark.parametrize(("names", "count"), [(["seal", "seal"], 6), (["seal", "walrus"], 10)])
def test_two_enrolments_at_once_neither_double_nor_merge(names, count, enrolling, tmp_path):
    """Both copy the same photographs, and two photographs of one name."""
    run, images, files = enrolling
    cameras = [tmp_path / "one", tmp_path / "two"]
    for place, shade in zip(cameras, (77, 78), strict=True):
        place.mkdir()
        Image.new("L", (8, 8), shade).save(place / "IMG_1.png")
    runs = [run, load_run(run.folder, "cpu")]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        done = list(pool.map(lambda own, name, place: own.enroll([*files, place], name), runs, names, cameras))
    found = sorted(path.relative_to(images).as_posix() for name in {*names} for path in (images / name).iterdir())
    assert found == sorted(done[0].copied + done[1].copied)
    assert len(found) == count
    assert sorted(path for path in run.indexed_images().paths if path.split("/")[0] in names) == found


@pytest.mark.parametrize(("made", "typed"), [("Zoe\u0308", "Zo\u00eb"), ("Zo\u00eb", "Zoe\u0308")])
def test_names_of_one_reading_are_one_class(made, typed, enrolling, tmp_path):
    run, images, files = enrolling
    (images / made).mkdir()
    shutil.copy(files[0], images / made)
    done = run.enroll(files[:2], typed)
    assert (len(done.copied), len(done.there)) == (1, 1)
    assert [path.name for path in images.iterdir() if path.name.startswith("Zo")] == [made]
    assert run.indexed_images().classes.count("Zo\u00eb") == 2
    (answer,) = run.query(files[3], 2, within=typed)
    assert len(answer.paths) == 2
    assert run.match([files[3]], tmp_path / "answers.jsonl", 2, within=typed) == (1, 2)


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
    given = [tmp_path / f"camera {number}" / "IMG_1.png" for number in range(3)]
    for file, place in zip(files[:3], given, strict=True):
        place.parent.mkdir()
        shutil.copy(file, place)
    assert run.enroll(given, "seal").copied == ["seal/IMG_1.png", "seal/IMG_1-2.png", "seal/IMG_1-3.png"]
    assert run.enroll([shutil.copy(files[3], tmp_path / ".hidden.png")], "seal").copied == ["seal/hidden.png"]
    assert run.indexed_images().classes.count("seal") == 4


def test_companions_are_copied_with_their_photograph(enrolling, tmp_path):
    run, images, files = enrolling
    (images / "seal").mkdir()
    shutil.copy(images / "0" / "0000.png", images / "seal" / "IMG_1.PNG")
    shutil.copy(files[0], tmp_path / "IMG_1.png")
    for name in ("IMG_1.CR3", "IMG_1.png.xmp", "IMG_1.txt"):
        (tmp_path / name).write_text(name)
    names = ["seal/IMG_1-2.CR3", "seal/IMG_1-2.png.xmp"]
    given = [tmp_path / "IMG_1.png.xmp", tmp_path / "IMG_1.png"]
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
    with monkeypatch.context() as patch:
        patch.setattr(ImageEmbedder, "batches_of", full)
        with pytest.raises(OSError, match="No space left"):
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
    (tmp_path / "broken.png").write_bytes(files[0].read_bytes()[:-40])
    shutil.copy(files[0], tmp_path / "photo")
    (tmp_path / "empty").mkdir()
    for given, text in (
        ("broken.png", "broken.png"),
        ("photo", "an index reads files that end in"),
        ("gone.png", "gone.png"),
        ("empty", "no image in it"),
    ):
        with pytest.raises(DataError, match=text):
            run.enroll([files[1], tmp_path / given], "seal")
    with pytest.raises(ConfigError, match="no photographs to enroll"):
        run.enroll([], "seal")
    assert not (images / "seal").exists()
    shutil.rmtree(images)
    with pytest.raises(DataError, match="the indexed folder is gone"):
        run.enroll(files, "seal")


def tree(place):
    """The bytes of each file below a folder by path, hidden ones too, except what the command writes for itself."""
    found = {}
    for path in place.rglob("*"):
        name = path.relative_to(place).as_posix()
        if JOURNAL not in name and name != ".lock" and (path.is_file() or path.is_symlink()):
            found[name] = os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
    return found


def indexed(run):
    embedded = run.indexed_images()
    about = zip(embedded.classes, map(tuple, embedded.embeddings.tolist()), strict=True)
    return dict(zip(embedded.paths, about, strict=True))


def assert_same_index(found, wanted):
    """Vectors that were computed in another batch may differ in their last digit."""
    assert {path: name for path, (name, _) in found.items()} == {path: name for path, (name, _) in wanted.items()}
    for path, (_, vector) in wanted.items():
        assert found[path][1] == pytest.approx(vector, abs=1e-6)


@pytest.fixture
def changing(enrolling, monkeypatch):
    """A run that embeds only what comes back from a removed class, the folder of its classes, and all files in it."""
    run, images, _ = enrolling
    shutil.copy(images / "1" / "0001.png", images / "2" / "0001.png")
    for place in ("1", "2"):
        (images / place / "0001.CR2").write_text(f"raw {place}")
    (images / "1" / "below").mkdir()
    shutil.copy(images / "3" / "0003.png", images / "1" / "below")
    (images / "1" / ".hidden").write_text("hidden")
    (images / "1" / "link.png").symlink_to("../3/0003.png")
    run.index()
    real = ImageEmbedder.batches_of

    def refuse(self, files, *arguments):
        assert not files or any(not move.new for move in read_moves(images))
        return real(self, files, *arguments)

    monkeypatch.setattr(ImageEmbedder, "batches_of", refuse)
    return run, images, tree(images)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change[0])
def test_a_change_moves_all_files_and_is_undone(change, changing):
    run, images, before = changing
    at_first = indexed(run)
    done = change_class(run.search_index, *change)
    new = {"--rename": "Zoë 1", "--join": "2", "--remove": f"{REMOVED}/1"}[change[0]]
    assert (done.photographs, done.folder, done.missing) == (4, str(images / new), 0)
    assert not (images / "1").exists()
    after = tree(images)
    assert sorted(after.values()) == sorted(before.values())
    assert after[f"{new}/below/0003.png"] == before["1/below/0003.png"]
    number = "-2" if change[0] == "--join" else ""
    assert after[f"{new}/0001{number}.CR2"] == b"raw 1"
    assert after[f"{new}/0001{number}.png"] == before["1/0001.png"]
    classes = [name for name, _ in indexed(run).values()]
    assert classes.count(new) == {"--rename": 4, "--join": 7}.get(change[0], 0)
    assert "1" not in classes
    assert len(classes) == done.images
    assert change_class(run.search_index, *change) == done  # after a kill, the same command again
    assert done.undo == f"to undo: pml-ext enroll {run.folder} --undo 1"
    back = undo_change(run.search_index, 1)
    assert undo_change(run.search_index, 1) == back
    assert tree(images) == before
    assert_same_index(indexed(run), at_first)
    assert not (images / REMOVED).exists()
    undo_change(run.search_index, 2)
    assert tree(images) == after


def test_former_names_of_trained_classes_count(changing):
    run, images, _ = changing
    run.loaded.description.class_names = ["1"]
    assert run.calibrate().other_classes == 9
    for change in (("--rename", "1", "one"), ("--rename", "one", "ein"), ("--join", "ein", "2")):
        change_class(run.search_index, *change)
    former = former_names(images)
    assert (former["one"], former["ein"], former["2"]) == ({"1"}, {"1", "one"}, {"1", "one", "ein"})
    undo_change(run.search_index, 3)
    assert run.calibrate().other_classes == 8  # of 10, without ein and 2


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (("--rename", "Seal", "x"), "--rename Seal: no class 'Seal'; nearest: seal"),
        (("--join", "seal", "3x"), "--join seal 3x: no class '3x'; nearest: 3"),
        (("--join", "seal", "seal"), "this is one class"),
        (("--rename", "seal", "3"), "3 exists; to join the two, type: pml-ext enroll .* --join seal 3"),
        (("--rename", "seal", "file"), "file exists; to join"),
        (("--rename", "seal", "a/b"), "--rename 'a/b': .*wanted a name without /"),
        (("--rename", "seal", ""), "--rename '': wanted the name"),
        (("--rename", "3", "SEAL"), "--rename 'SEAL': the class 'seal' reads nearly the same; type its name, or first"),
        (("--rename", "seal", "Seal"), "names differ only in case here; type a third name first, then Seal"),
    ],
)
def test_unsuitable_changes_are_refused_before_moving(change, text, changing):
    run, images, _ = changing
    change_class(run.search_index, "--rename", "1", "seal")
    (images / "file").touch()
    if change[-1] == "Seal":
        (images / "Seal").symlink_to("seal")  # as where names have no case
    before = tree(images)
    with pytest.raises(ConfigError, match=text):
        change_class(run.search_index, *change)
    assert tree(images) == before


def test_the_last_class_and_unknown_changes_are_refused(changing):
    run, images, _ = changing
    with pytest.raises(ConfigError, match="--undo 1: there is no such change; 0 were made so far"):
        undo_change(run.search_index, 1)
    for name in "123456789":
        change_class(run.search_index, "--remove", name)
    with pytest.raises(ConfigError, match="no other photograph is indexed"):
        change_class(run.search_index, "--remove", "0")
    shutil.move(images / REMOVED / "1" / "0001.png", images / "0" / "moved.png")
    assert undo_change(run.search_index, 1).missing == 1
    undo_change(run.search_index, 2)
    with pytest.raises(DataError, match="--undo 1: its photographs have been moved since"):
        undo_change(run.search_index, 1)
    (images / JOURNAL).write_text("{")
    with pytest.raises(DataError, match="damaged .*rename it, and earlier changes"):
        change_class(run.search_index, "--rename", "0", "x")


def test_undone_photographs_keep_their_companions_apart(changing):
    run, images, before = changing
    change_class(run.search_index, "--rename", "1", "Zoe")
    (images / "1").mkdir()
    (images / "1" / "0001.CR2").write_text("newer")
    undo_change(run.search_index, 1)
    after = tree(images)
    assert after["1/0001-2.png"] == before["1/0001.png"]
    assert (after["1/0001-2.CR2"], after["1/0001.CR2"]) == (b"raw 1", b"newer")


def test_names_too_long_for_a_number_move_nothing(changing):
    run, images, _ = changing
    for place in "12":
        (images / place / f"{'x' * 250}.xmp").write_text(place)
    before = tree(images)
    with pytest.raises(DataError, match="is taken in .*, and too long for a number; rename it first"):
        change_class(run.search_index, "--join", "1", "2")
    assert tree(images) == before
    assert change_class(run.search_index, "--rename", "1", "Zoe").photographs == 4


def test_classes_in_splits_and_spellings_move_whole(enrolling):
    run, images, _ = enrolling
    decomposed = unicodedata.normalize("NFD", "Zoë")
    for place in ("train/1", f"test/{decomposed}", "test/Zoë", "val/Zoë", "train/2"):
        (images.parent / "split" / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(images / "1", images.parent / "split" / place)
    images = images.parent / "split"
    run.index(images)
    assert change_class(run.search_index, "--join", decomposed, "1").photographs == 6
    assert {"test/1/0001.png", "test/1/0001-2.png", "val/1/0001.png"} < {*tree(images)}
    assert set(run.indexed_images().classes) == {"1", "2"}
    change_class(run.search_index, "--remove", "2")
    with pytest.raises(ConfigError, match="--remove 1: no other photograph is indexed"):
        change_class(run.search_index, "--remove", "1")
    undo_change(run.search_index, 1)
    change_class(run.search_index, "--rename", "1", "one")
    with pytest.raises(ConfigError, match="train and test would not both have photographs"):
        change_class(run.search_index, "--remove", "one")


def test_classes_inside_a_class_stay(enrolling):
    run, images, _ = enrolling
    shutil.move(images / "2", images / "1" / "2")
    run.search_index.images.class_levels = None
    run.index(images)
    change_class(run.search_index, "--rename", "1", "3/one")
    assert {"1/2", "3", "3/one"} < set(run.indexed_images().classes)
    assert "1" not in run.indexed_images().classes


@pytest.mark.parametrize("other", [("--rename", "1", "one"), ("--join", "2", "1"), None])
def test_two_changes_at_once_lose_nothing(other, changing, monkeypatch):
    run, images, before = changing
    if other is None:
        monkeypatch.undo()  # an index that lists files while they move embeds some again
    again = load_run(run.folder, "cpu")

    def second():
        with contextlib.suppress(ConfigError):  # class 1 may be gone
            change_class(again.search_index, *other) if other else again.index()

    with concurrent.futures.ThreadPoolExecutor() as pool:
        works = [pool.submit(change_class, run.search_index, "--rename", "1", "one"), pool.submit(second)]
        for work in works:
            work.result()
    assert sorted(tree(images).values()) == sorted(before.values())
    assert sorted(run.index().embedded.paths) == sorted(run.indexed_images().paths)
    assert "1" not in run.indexed_images().classes


@pytest.mark.nightly
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change[0])
def test_a_killed_change_goes_on(change, changing):
    """A kill before and after each change of the file system, from the first to the last."""
    run, images, before = changing

    def mortal(calls):
        torch.set_num_threads(1)  # OpenMP's threads are not forked
        left = [calls]
        for name in ("open", "replace", "fsync", "rmdir", "mkdir"):
            real = getattr(os, name)

            def deadly(*arguments, real=real, **options):
                if not left[0]:
                    os.kill(os.getpid(), signal.SIGKILL)
                left[0] -= 1
                return real(*arguments, **options)

            setattr(os, name, deadly)
        change_class(run.search_index, *change)

    killed = -signal.SIGKILL
    calls = 0
    while killed == -signal.SIGKILL:
        process = multiprocessing.get_context("fork").Process(target=mortal, args=(calls,))
        process.start()
        process.join(120)
        killed = process.exitcode
        there = [content for content in tree(images).values() if content]  # an empty file reserves a name
        assert sorted(there) == sorted(before.values())
        if calls % 3 and read_moves(images):
            undo_change(run.search_index, 1)  # another command goes on, too
            assert tree(images) == before
        else:
            change_class(run.search_index, *change)
            assert "1" not in run.indexed_images().classes
            undo_change(run.search_index, 1)
        assert tree(images) == before
        assert len(run.indexed_images().paths) == len([name for name in before if name.endswith(".png")])
        (images / JOURNAL).unlink()
        calls += 1
    assert killed == 0
    assert calls > 20
