"""Copies that are moved, moved back or linked: nothing is lost at any moment, and a second run finds nothing to do."""

import multiprocessing
import os
import random
import shutil
import signal
import time
from unittest.mock import DEFAULT, Mock, patch

import pytest

from pml_ext.errors import ConfigError, DataError
from pml_ext_copies import find_duplicates, set_aside
from pml_ext_copies.set_aside import MOVES, finish_moves, link_copies, move_back, move_copies

from ..search.photographs import photograph
from .test_duplicates import files_of

ODD = "new\nline, \udcff.png"


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "images"
    (place / "sub").mkdir(parents=True)
    for number in range(3):
        photograph(number).save(place / f"{number}.png")
    os.utime(place / "0.png", (1000, 1000))
    shutil.copy(place / "0.png", place / "sub" / ODD)
    shutil.copy(place / "0.png", place / "sub" / "b.png")
    photograph(1, 80).save(place / "sub" / "small.jpg")
    return place


@pytest.fixture
def found(folder):
    return find_duplicates(files_of(folder))


@pytest.fixture
def aside(tmp_path):
    return tmp_path / "aside"


def tree(place):
    """The visible files below a folder: bytes by path."""
    files = [file for file in place.rglob("[!.]*.*") if file.is_file()]
    return {str(file.relative_to(place)): file.read_bytes() for file in files}


def contents(*places):
    return sorted(content for place in places for content in tree(place).values())


def interrupted(name, work, calls=0):
    """Do a work that is killed after some calls of a function of the system."""
    effects = [*[DEFAULT] * calls, KeyboardInterrupt]
    with (
        patch.object(set_aside.os, name, Mock(wraps=getattr(os, name), side_effect=effects)),
        pytest.raises(KeyboardInterrupt),
    ):
        work()


def test_exact_copies_become_hard_links(folder, found):
    before = tree(folder)
    done = link_copies(found, [folder])
    assert (done.files, done.space) == (2, 2 * (folder / "0.png").stat().st_size)
    assert tree(folder) == before
    assert (folder / "0.png").stat().st_nlink == 3
    assert (folder / "sub" / "small.jpg").stat().st_nlink == 1
    again = find_duplicates(files_of(folder))
    assert again.of_kind("exact") == []
    assert link_copies(again, [folder]).files == 0


@pytest.mark.parametrize("kept", [0, 2])
def test_a_killed_link_is_completed_with_any_choice(folder, found, kept):
    before = tree(folder)
    interrupted("replace", lambda: link_copies(found, [folder]))
    assert tree(folder) == before
    assert len(os.listdir(folder / "sub")) == 4
    keep = found.of_kind("exact")[0].images[kept].path
    assert link_copies(find_duplicates(files_of(folder), keep=keep), [folder]).files == 2
    assert len(os.listdir(folder / "sub")) == 3
    assert tree(folder) == before


@pytest.mark.parametrize(("work", "copies"), [("link", 2), ("move", 3)])
@pytest.mark.parametrize(("name", "left"), [("sub/b.png", 1), ("0.png", 2)])
@pytest.mark.parametrize("change", [lambda file: file.write_bytes(b"new"), os.unlink], ids=["changed", "gone"])
def test_what_has_changed_since_the_search_is_left(folder, found, aside, work, copies, name, left, change):
    change(folder / name)
    before = contents(folder)
    done = link_copies(found, [folder]) if work == "link" else move_copies(found, aside, [folder])
    assert (done.files, len(done.left)) == (copies - left, left)
    assert f"{name} {'is gone' if change is os.unlink else 'has changed'} since it was compared" in done.left[0]
    assert contents(folder, aside) == before


def test_other_devices_are_refused_before_anything_is_done(folder, found, aside, monkeypatch):
    real = os.lstat

    def on_another(path):
        mode, number, device, *others = real(path)
        return os.stat_result([mode, number, device + 1, *others])

    monkeypatch.setattr(set_aside.os, "lstat", on_another)
    with pytest.raises(ConfigError, match="0.png are on different devices, .*; use --move FOLDER"):
        link_copies(found, [folder])
    with pytest.raises(ConfigError, match="is on another device; choose a folder on the same"):
        move_copies(found, aside, [folder])
    monkeypatch.undo()
    assert {file.stat().st_nlink for file in folder.rglob("*.png")} == {1}
    assert len(tree(folder)) == 6


@pytest.mark.parametrize("has_links", [True, False])
def test_copies_are_moved_and_moved_back(folder, aside, monkeypatch, has_links):
    before = tree(folder)
    os.link(folder / "sub" / "b.png", folder / "hard.png")
    if not has_links:  # as on exFAT

        def link(_, target):
            raise FileExistsError if os.path.lexists(target) else OSError(1, "Operation not permitted")

        monkeypatch.setattr(set_aside.os, "link", link)
    done = move_copies(find_duplicates(files_of(folder)), aside, [folder])
    assert (done.files, done.left) == (4, [])
    assert {*tree(aside)} == {"hard.png", f"sub/{ODD}", "sub/b.png", "sub/small.jpg"}
    assert (aside / "hard.png").samefile(aside / "sub" / "b.png")
    assert {*tree(folder)} == {"0.png", "1.png", "2.png"}
    assert find_duplicates(files_of(folder)).groups == []
    shutil.rmtree(folder / "sub")
    (folder / "hard.png").write_bytes(b"of somebody")
    done = move_back(aside, folder)
    assert (done.files, len(done.left)) == (3, 1)
    assert "hard.png is taken" in done.left[0]
    (folder / "hard.png").unlink()
    assert move_back(aside, folder).files == 1
    (folder / "hard.png").unlink()
    assert tree(folder) == before
    assert tree(aside) == {}
    assert move_back(aside, folder).files == 0
    assert finish_moves(aside, [folder]).files == 0


def test_a_file_that_appears_meanwhile_is_not_replaced(folder, aside, monkeypatch):
    before = tree(folder)
    real = set_aside.write_json

    def appears(*arguments):
        (aside / "sub").mkdir(parents=True, exist_ok=True)
        (aside / "sub" / "b.png").write_bytes(b"of somebody")
        real(*arguments)

    monkeypatch.setattr(set_aside, "write_json", appears)
    assert move_copies(find_duplicates(files_of(folder)), aside, [folder]).files == 3
    assert (aside / "sub" / "b.png").read_bytes() == b"of somebody"
    assert (aside / "sub" / "b-2.png").read_bytes() == (folder / "0.png").read_bytes()
    move_back(aside, folder)
    assert tree(folder) == before
    assert tree(aside) == {"sub/b.png": b"of somebody"}


@pytest.mark.parametrize(("name", "calls"), [("link", 0), ("link", 1), ("link", 2), ("replace", 1)])
def test_a_killed_move_goes_on_with_its_choice(folder, aside, name, calls):
    before = tree(folder)
    found = find_duplicates(files_of(folder), keep="sub")
    spared = {image.path for group in found.groups for image in group.others}
    interrupted(name, lambda: move_copies(found, aside, [folder]), calls)
    assert contents(folder, aside) == sorted(before.values())
    done = finish_moves(aside, [folder])
    assert (done.files, done.left) == (3, [])
    assert {*tree(aside)} == spared
    assert move_back(aside, folder).files == 3
    assert tree(folder) == before


def along(folder):
    """Write companions of two copies and of the image that is kept."""
    for name in ("sub/b.png.xmp", "sub/b.MOV", "0.xmp"):
        (folder / name).write_text(name)


@pytest.mark.parametrize("calls", [0, 1, 2, 3])
def test_companions_are_moved_along_and_back(folder, aside, calls):
    along(folder)
    (aside / "sub").mkdir(parents=True)
    (aside / "sub" / "b.MOV").write_text("of somebody")
    before = tree(folder)
    found = find_duplicates(files_of(folder))
    if calls:
        interrupted("link", lambda: move_copies(found, aside, [folder]), calls)
        done = finish_moves(aside, [folder])
    else:
        done = move_copies(found, aside, [folder])
        assert done.companions == 2
    assert (done.files, done.left) == (3, [])
    names = {"b-2.png", "b-2.png.xmp", "b-2.MOV", "b.MOV", "small.jpg", ODD}
    assert {*tree(aside)} == {f"sub/{name}" for name in names}
    assert (aside / "sub" / "b-2.MOV").read_text() == "sub/b.MOV"
    movie = folder / "sub" / "b.MOV"
    movie.write_text("new")
    assert "b.MOV is taken" in move_back(aside, folder).left[0]
    movie.unlink()
    assert move_back(aside, folder).left == []
    assert (tree(folder), tree(aside)) == (before, {"sub/b.MOV": b"of somebody"})


def test_companions_stay_with_an_image_that_stays(folder, aside):
    along(folder)
    photograph(2).resize((8, 8)).save(folder / "sub" / "b.jpg")
    assert move_copies(find_duplicates(files_of(folder), 1e-9), aside, [folder]).companions == 1
    assert (folder / "sub" / "b.MOV").exists()
    assert (aside / "sub" / "b.png.xmp").exists()
    shutil.copy(folder / "sub" / "b.jpg", folder / "other.jpg")
    os.utime(folder / "other.jpg", (1, 1))  # the older one is kept
    assert move_copies(find_duplicates(files_of(folder), 1e-9), aside, [folder]).companions == 1
    assert (aside / "sub" / "b.MOV").exists()
    move_back(aside, folder)
    assert {"sub/b.MOV", "sub/b.png.xmp"} <= {*tree(folder)}


@pytest.mark.parametrize(
    "place",
    ["images", "images/sub/aside", "to images/aside", "images/link out", "images/../images/new", ".", "link in"],
)
def test_a_folder_with_the_images_is_refused(folder, tmp_path, place):
    (tmp_path / "to images").symlink_to("images")
    (folder / "link out").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "link in").mkdir()
    (tmp_path / "link in" / "sub").symlink_to(folder / "sub")
    with pytest.raises(ConfigError, match="(inside|contains|sub is a link that leads out of it).*; choose"):
        move_copies(find_duplicates(files_of(folder)), tmp_path / place, [folder])
    assert not (tmp_path / place / MOVES).exists()


def test_symbolic_links_are_never_kept_for_files(folder, tmp_path, aside):
    """A link that leads to a moved image is reported; of a file and a link to an equal one, the file stays."""
    os.symlink("b.png", folder / "sub" / "to b.png")
    (tmp_path / "elsewhere.png").write_bytes((folder / "2.png").read_bytes())
    os.utime(tmp_path / "elsewhere.png", (1, 1))
    os.symlink(tmp_path / "elsewhere.png", folder / "a link.png")
    done = move_copies(find_duplicates(files_of(folder), keep="oldest"), aside, [folder])
    assert done.files == 3
    assert (folder / "2.png").exists()
    assert done.left == [
        f"{folder / 'sub' / 'to b.png'} is a symbolic link that leads nowhere now",
        f"{folder / 'a link.png'} is a symbolic link",
    ]


def test_undo_reports_only_images_that_it_moved(folder, found, tmp_path, aside):
    move_copies(found, tmp_path / "other", [folder])
    assert move_copies(found, aside, [folder]).files == 0
    assert not move_back(aside, folder).left


def test_images_of_the_old_folder_stay(folder, tmp_path, aside):
    new = tmp_path / "new"
    new.mkdir()
    photograph(0, 640).save(new / "larger.png")
    shutil.copy(folder / "2.png", new / "linked.png")
    (folder / "2.png").unlink()
    os.symlink(new / "linked.png", folder / "2.png")
    before = tree(folder)
    done = move_copies(find_duplicates(files_of(new, folder)), aside, [new, folder])
    assert (done.files, {*tree(aside)}) == (1, {"larger.png"})
    assert "linked.png is a file, but the image to keep" in done.left[0]
    assert tree(folder) == before


def test_a_damaged_list_of_moves_is_an_error(folder, aside):
    with pytest.raises(DataError, match="--undo .*: it has no list of moved images.*older versions.*cp -an "):
        move_back(aside, folder)
    aside.mkdir()
    for text in ("{", '{"moves": [{"root": 1}]}', '{"moves": 3}'):
        (aside / MOVES).write_text(text)
        with pytest.raises(DataError, match="damaged .* cannot be undone; rename it"):
            move_back(aside, folder)


@pytest.mark.nightly
def test_random_kills_lose_and_double_nothing(folder, aside):
    """60 kills of moves, links and undos, alone and two at once, each with a choice of its own."""
    shutil.copy(folder / "1.png", folder / "sub" / "1.png")
    along(folder)
    before = tree(folder)
    draw = random.Random(0)
    works = {
        "move": lambda found: (finish_moves(aside, [folder]), move_copies(found, aside, [folder])),
        "link": lambda found: link_copies(found, [folder]),
        "undo": lambda _: move_back(aside, folder),
    }
    context = multiprocessing.get_context("fork")
    killed = 0
    while killed < 60:
        processes = []
        for _ in range(draw.choice([1, 2])):
            found = find_duplicates(files_of(folder), 0.3, draw.choice(["oldest", "most-pixels", "least-compressed"]))
            work = works[draw.choice(["move", "move", "link", "undo"])]
            processes.append(context.Process(target=work, args=(found,)))
            processes[-1].start()
        for process in processes:
            time.sleep(draw.uniform(0, 0.03))
            process.kill()
        for process in processes:
            process.join()
            killed += process.exitcode == -signal.SIGKILL
        here = contents(folder)
        assert {*here, *contents(aside)} == {*before.values()}
        assert len({content for content in here if content in (before["0.png"], before["2.png"])}) == 2
        assert before["1.png"] in here or before["sub/small.jpg"] in here
    finish_moves(aside, [folder])
    assert sorted([*tree(folder), *tree(aside)]) == sorted(before)
    if tree(aside):
        move_back(aside, folder)
    link_copies(find_duplicates(files_of(folder), 0.3), [folder])
    assert tree(folder) == before
