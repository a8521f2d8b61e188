"""The search for copies in its thread, and what somebody keeps of them."""

import csv
import io
import json
import shutil
import threading

import pytest
import torch

from pml_ext import registry
from pml_ext.errors import ConfigError, DataError
from pml_ext_browse.copies import CopiesSearch
from pml_ext_copies.duplicates import find_duplicates
from pml_ext_copies.image_files import ImageFiles
from pml_ext_train.data import list_folder

from ..search.photographs import photograph, write_copies
from .test_collection import made


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
        paths = [image.path for image in other.images]
        assert [copies._collection.paths[number] for number in each.numbers] == paths
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
    keep = {(row["group"], row["path"]): row["keep"] for row in rows}
    assert [keep["1", image.path] for image in exact.group.images] == ["no", "yes"]
    assert [row["keep"] for row in rows if row["group"] == "2"] == [
        "yes" if row["path"] in (near.group.images[0].path, near.group.images[3].path) else "no"
        for row in rows
        if row["group"] == "2"
    ]
    assert [row["keep"] for row in rows if row["group"] == "3"] == ["yes"] + 7 * ["no"]
    told = json.loads(copies.as_text(shown, kept, "json"))
    assert told["groups"][0]["keep"] == exact.group.images[1].path == 'two/deep/<img src=x onerror="alert(1)">.png'
    assert near.group.images[3].path not in [image["path"] for image in told["groups"][1]["images"]]
    assert {*told["groups"][0]["images"][0]} == {"path", "distance", "bytes", "width", "height", "differs"}
    assert copies.as_text([], [], "csv") == copies._found.as_csv()
    assert len(other.group.images) == 8


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

    def broken(self):
        raise RuntimeError("a bug")

    monkeypatch.setattr(CopiesSearch, "_find", broken)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    assert found_by(copies).state.problem == "RuntimeError: a bug"
