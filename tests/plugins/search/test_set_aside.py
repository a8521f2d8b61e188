"""Copies that are moved or linked: nothing is lost at any moment, and a second run finds nothing to do."""

import os
import shutil

import pytest

from pml_ext.errors import ConfigError, UnwritableError
from pml_ext_search import set_aside
from pml_ext_search.duplicates import find_duplicates
from pml_ext_search.set_aside import link_copies, move_copies

from .photographs import photograph
from .test_duplicates import files_of


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "images"
    (place / "sub").mkdir(parents=True)
    for number in range(3):
        photograph(number).save(place / f"{number}.png")
    os.utime(place / "0.png", (1000, 1000))
    shutil.copy(place / "0.png", place / "sub" / "new\nline, \udcff.png")
    shutil.copy(place / "0.png", place / "sub" / "b.png")
    photograph(1, 80).save(place / "sub" / "small.jpg")
    return place


def contents(*places):
    return sorted(file.read_bytes() for place in places for file in place.rglob("[!.]*.*") if file.is_file())


def test_exact_copies_become_hard_links(folder):
    before = contents(folder)
    done = link_copies(find_duplicates(files_of(folder)))
    assert (done.files, done.space) == (2, 2 * (folder / "0.png").stat().st_size)
    assert contents(folder) == before
    assert (folder / "0.png").stat().st_nlink == 3
    assert (folder / "sub" / "small.jpg").stat().st_nlink == 1
    again = find_duplicates(files_of(folder))
    assert again.of_kind("exact") == []
    assert link_copies(again).files == 0


def test_a_link_that_was_killed_is_completed(folder, monkeypatch):
    found = find_duplicates(files_of(folder))
    before = contents(folder)

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(set_aside.os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            link_copies(found)
    assert [file for file in before if file not in contents(folder)] == []
    assert link_copies(found).files == 2
    assert not [name for name in os.listdir(folder / "sub") if name.startswith(".")]
    assert contents(folder) == before


def test_a_file_that_has_changed_meanwhile_is_left(folder):
    found = find_duplicates(files_of(folder))
    (folder / "sub" / "b.png").write_bytes(b"something new")
    done = link_copies(found)
    assert done.files == 1
    assert "b.png has changed since it was compared" in done.left[0]
    assert (folder / "sub" / "b.png").read_bytes() == b"something new"


def test_links_across_devices_are_refused_before_anything_is_done(folder, monkeypatch):
    found = find_duplicates(files_of(folder))
    real = os.lstat

    def on_another(path):
        values = list(real(path))
        values[2] += 1  # st_dev
        return os.stat_result(values)

    monkeypatch.setattr(set_aside.os, "lstat", on_another)
    with pytest.raises(ConfigError, match="is on another device than .*0.png, where no hard link reaches"):
        link_copies(found)
    with pytest.raises(ConfigError, match="is on another device; wanted a folder on its own"):
        move_copies(found, folder.parent / "aside", [folder])
    monkeypatch.undo()
    assert (folder / "0.png").stat().st_nlink == 1
    assert (folder / "sub" / "b.png").exists()


def test_copies_are_moved_with_their_paths(folder, tmp_path):
    before = contents(folder)
    found = find_duplicates(files_of(folder))
    done = move_copies(found, tmp_path / "aside", [folder])
    assert done.files == 3
    assert {path.name for path in (tmp_path / "aside" / "sub").iterdir()} == {
        "new\nline, \udcff.png",
        "b.png",
        "small.jpg",
    }
    assert {path.name for path in folder.rglob("*.*")} == {"0.png", "1.png", "2.png"}
    assert contents(folder, tmp_path / "aside") == before
    again = find_duplicates(files_of(folder))
    assert again.groups == []
    assert move_copies(again, tmp_path / "aside", [folder]).files == 0


def test_what_is_there_is_not_replaced(folder, tmp_path):
    (tmp_path / "aside" / "sub").mkdir(parents=True)
    (tmp_path / "aside" / "sub" / "b.png").write_bytes(b"of somebody")
    move_copies(find_duplicates(files_of(folder)), tmp_path / "aside", [folder])
    assert (tmp_path / "aside" / "sub" / "b.png").read_bytes() == b"of somebody"
    assert (tmp_path / "aside" / "sub" / "b-2.png").read_bytes() == (folder / "0.png").read_bytes()


def test_a_move_that_fails_is_completed_by_the_next(folder, tmp_path, monkeypatch):
    before = contents(folder)
    real = os.rename
    moved = []

    def fails_at_the_second(source, target):
        if moved:
            raise OSError(28, "No space left on device")
        moved.append(source)
        real(source, target)

    found = find_duplicates(files_of(folder))
    with monkeypatch.context() as patched:
        patched.setattr(set_aside.os, "rename", fails_at_the_second)
        with pytest.raises(UnwritableError, match="it stays where it was"):
            move_copies(found, tmp_path / "aside", [folder])
    assert contents(folder, tmp_path / "aside") == before
    assert move_copies(find_duplicates(files_of(folder)), tmp_path / "aside", [folder]).files == 2
    assert contents(folder, tmp_path / "aside") == before


def test_a_folder_inside_of_the_images_is_refused(folder):
    found = find_duplicates(files_of(folder))
    for place in (folder, folder / "sub" / "aside"):
        with pytest.raises(ConfigError, match="it is inside of .*whose images are compared"):
            move_copies(found, place, [folder])


def test_hard_links_of_a_copy_are_moved_with_it_and_symbolic_ones_are_left(folder, tmp_path):
    os.link(folder / "sub" / "b.png", folder / "link.png")
    os.symlink("0.png", folder / "symbolic.png")
    done = move_copies(find_duplicates(files_of(folder)), tmp_path / "aside", [folder])
    assert done.files == 4
    assert (tmp_path / "aside" / "link.png").samefile(tmp_path / "aside" / "sub" / "b.png")
    assert (folder / "symbolic.png").is_symlink()
    assert find_duplicates(files_of(folder)).groups == []


def test_old_images_stay(folder, tmp_path):
    new = tmp_path / "new"
    new.mkdir()
    photograph(0, 640).save(new / "larger.png")
    found = find_duplicates(files_of(new, folder))
    assert move_copies(found, tmp_path / "aside", [new, folder]).files == 1
    assert (tmp_path / "aside" / "larger.png").exists()
    assert len(list(folder.rglob("*.*"))) == 6
