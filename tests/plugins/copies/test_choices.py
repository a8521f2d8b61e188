"""Choices of the copies to keep: their table, contact sheet and page."""

import csv
import io
import re
import shutil
import unicodedata

import pytest
import torch
from PIL import Image

from pml_ext.errors import ConfigError, DataError
from pml_ext_copies import find_duplicates, find_equal_vectors, pages
from pml_ext_copies.choices import keep_chosen, keep_listed

from ..search.photographs import photograph, stacked
from .test_duplicates import files_of, write_kinds


def test_distances_are_from_the_image_that_is_kept(photos):
    """As those that a search finds whose rule keeps that image."""
    found = find_duplicates(files_of(photos))
    wanted = find_duplicates(files_of(photos), found.radius, "01-crop.png")
    place = [group.keep.path for group in found.groups].index("01-doubled.png")
    chosen = keep_chosen(found, {place: ["01-crop.png"]})
    (by_rule,) = [group for group in wanted.groups if group.keep.path == "01-crop.png"]
    group = chosen.groups[place]
    assert [image.path for image in group.images] == [image.path for image in by_rule.images]
    distances = [image.distance for image in by_rule.images]
    assert [image.distance for image in group.images] == pytest.approx(distances, abs=1e-6)
    assert group.images[1].distance > 0
    assert group.space == by_rule.space
    assert [group for group in chosen.groups if group.keep.path != "01-crop.png"] == [
        group for group in found.groups if group.keep.path != "01-doubled.png"
    ]
    (photos / "01-half.png").unlink()
    with pytest.raises(DataError, match="01-half.png.*; search for copies again"):
        keep_chosen(found, {place: ["01-crop.png"]})


def test_several_images_are_kept_by_a_table(tmp_path, recwarn):
    found = find_duplicates(files_of(write_kinds(tmp_path / "images")))
    paths = [[image.path for image in group.images] for group in found.groups]
    exact = paths.index(["0.png", "exact $1_3.png", "sub/exact.png"])
    near = paths.index(["2.png", "small.jpg"])
    same = paths.index(["1.png", "same.tif"])
    kept = {exact: {"sub/exact.png", "exact $1_3.png"}, near: ["2.png", "small.jpg"], same: ["same.tif"]}
    chosen = keep_chosen(found, kept)
    assert [image.path for image in chosen.groups[exact].images] == ["exact $1_3.png", "0.png", "sub/exact.png"]
    rows = list(csv.DictReader(io.StringIO(chosen.as_csv())))
    for place, names in kept.items():
        assert {row["path"] for row in rows if (row["group"], row["keep"]) == (str(place + 1), "yes")} == {*names}
    assert len(rows) == sum(map(len, paths))
    groups = chosen.to_spare().as_json()["groups"]
    assert len(groups) == len(paths) - 1  # all of one are kept
    assert [[group["keep"], *(image["path"] for image in group["images"])] for group in groups] == [
        ["exact $1_3.png", "exact $1_3.png", "0.png"],
        ["exact $1_3.png", "exact $1_3.png", "same.bmp"],  # in place of 0.png, an exact copy
        ["same.tif", "same.tif", "1.png"],
        ["near.jpg", "near.jpg", "exact $1_3.png"],
    ]
    assert ["exact $1_3.png", "same.bmp", 0.0] in chosen.to_spare().as_json()["pairs"]
    sizes = {image.path: image.bytes for group in found.groups for image in group.images}
    assert chosen.as_json()["space"] == sum(sizes[name] for name in ["0.png", "exact $1_3.png", "1.png", "same.bmp"])
    with pytest.raises(DataError, match="no image is kept"):
        keep_chosen(found, {0: ["elsewhere.png"]})
    table = tmp_path / "copies.csv"
    for again in (chosen, found):  # also where an image takes the place of another one in groups of another kind
        table.write_text(again.as_csv())
        assert keep_listed(found, table) == again
    assert not [one for one in recwarn if "without an image" in str(one.message)]


def test_images_without_a_row_are_kept(photos, tmp_path):
    found = find_duplicates(files_of(photos))
    table = tmp_path / "copies.csv"
    rows = "near;FALSE;01-doubled.png\nnear; yes ;01-crop.png\nexact;no;02-half.png\n;;\n"  # as spreadsheets write it
    table.write_text(f"kind;keep;path\n{rows}")
    with pytest.warns(UserWarning, match=r"1 row without an image .* line 4: exact, 02-half.png"):
        chosen = keep_listed(found, table)
    assert [[image.path for image in group.others] for group in chosen.groups].count(["01-doubled.png"]) == 1
    others = [group for group in chosen.groups if not group.keep.path.startswith("01")]
    assert [(len(group.images), group.others) for group in others] == [(8, []), (8, [])]


@pytest.mark.parametrize(("in_folder", "in_table"), [("NFD", "NFC"), ("NFC", "NFD"), ("NFD", "NFD")])
def test_composed_and_decomposed_names_are_equal(tmp_path, recwarn, in_folder, in_table):
    folder = tmp_path / unicodedata.normalize(in_folder, "Zo\u00eb")
    folder.mkdir()
    for name in [unicodedata.normalize(in_folder, f"caf\u00e9 {number}.png") for number in range(2)]:
        photograph(0).save(folder / name)
    found = find_duplicates(files_of(tmp_path))
    chosen = keep_chosen(found, {0: [found.groups[0].images[1].path]})
    table = tmp_path / "copies.csv"
    table.write_text(unicodedata.normalize(in_table, chosen.as_csv()), "utf-8")
    assert keep_listed(found, table) == chosen
    assert not recwarn.list


def test_names_that_differ_by_composition_have_rows(tmp_path):
    """Two files on a system that does not compare names as people read them: their own table keeps one of them."""
    for form in ("NFC", "NFD"):
        photograph(0).save(tmp_path / unicodedata.normalize(form, "caf\u00e9.png"))
    found = find_duplicates(files_of(tmp_path))
    if not found.groups:
        pytest.skip("one file on this system")
    table = tmp_path / "copies.csv"
    kept, spare = (image.path for image in found.groups[0].images)
    table.write_text(f"kind,keep,path\nexact,no,{kept}\n", "utf-8")
    (group,) = keep_listed(found, table).groups
    assert [image.path for image in group.images] == [spare, kept]


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ("keep,path\nyes,a.png\n", "no column kind; wanted a table as --csv writes it"),
        ("kind,keep,path\nnear,maybe,a.png\n", "line 2: keep = 'maybe'; wanted"),
        ("kind,keep,path\nnear,no,a.png\nnear,yes,a.png\n", "line 2 and line 3 disagree on whether to keep a.png"),
        (
            "kind,keep,path\nexact,no,0.png\nexact,no,1.png\n",
            "no image of the exact group of .* is kept; write keep",
        ),
    ],
)
def test_a_wrong_or_contradictory_table_is_refused(tmp_path, rows, told):
    (tmp_path / "copies.csv").write_text(rows)
    for number in range(2):
        photograph(0).save(tmp_path / f"{number}.png")
    with pytest.raises(DataError, match=told):
        keep_listed(find_duplicates(files_of(tmp_path)), tmp_path / "copies.csv")


def test_vectors_have_no_files_to_measure():
    points = stacked([torch.tensor([1.0, 0.0]), torch.tensor([0.999, 0.0447])])
    found = find_equal_vectors(["a", "b"], points, 0.1)
    with pytest.raises(ConfigError, match="b is a vector, which has no file"):
        keep_chosen(found, {0: ["b"]})


@pytest.fixture
def found(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(4):
        photograph(number).save(folder / f"{number}.png")
    shutil.copy(folder / "0.png", folder / 'a "quoted", name\nof two lines \udcff <b>.png')
    photograph(1, 320).save(folder / "large.jpg")
    return find_duplicates(files_of(folder))


def page_of(found, place, *about):
    pages.write_page(found, place / "copies.html", *about)
    return (place / "copies.html").read_text("utf-8")


def test_the_table_has_a_row_for_each_image(found, tmp_path):
    rows = list(csv.DictReader(io.StringIO(found.as_csv(), newline="")))
    assert [row["kind"] for row in rows] == ["exact", "exact", "near", "near"]
    assert [row["keep"] for row in rows] == ["yes", "no", "yes", "no"]
    assert {row["path"] for row in rows[:2]} == {"0.png", 'a "quoted", name\nof two lines \udcff <b>.png'}
    assert (rows[2]["path"], rows[2]["width"], rows[2]["height"]) == ("large.jpg", "426", "320")
    assert float(rows[3]["distance"]) == pytest.approx(found.of_kind("near")[0].images[1].distance, abs=1e-6)


def test_the_page_has_its_pairs_side_by_side(found, tmp_path):
    text = page_of(found, tmp_path, "Copies of <mine>", "2 groups")
    assert text.count("<section>") == 2
    assert text.count("data:image/jpeg;base64,") == 4
    assert text.count('alt="the image to keep"') == text.count('alt="a copy of it"') == 2
    assert "Copies of &lt;mine&gt;" in text
    assert r"of two lines \udcff &lt;b&gt;.png" in text
    assert text.index("large.jpg") < text.index("1.png")
    assert re.findall(r"(?:src|href)=\"(?!data:)", text) == []
    assert len(text) < 100_000


def test_a_page_without_copies_says_so(tmp_path):
    photograph(0).save(tmp_path / "0.png")
    text = page_of(find_duplicates(files_of(tmp_path)), tmp_path, "", "")
    assert "No image is a copy of another one." in text
    assert "On the left" not in text


def test_a_page_of_many_pairs_says_so(found, tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "PAIRS", 1)
    text = page_of(found, tmp_path, "", "")
    assert text.count("<section>") == 1
    assert "the first 1 of 2 pairs" in text


def test_the_sheet_has_every_image(found, tmp_path):
    pages.write_sheet(found, tmp_path / "copies.png")
    with Image.open(tmp_path / "copies.png") as sheet:
        colors = sheet.convert("RGB").getcolors(1 << 24)
    assert sheet.size[0] > 1000
    assert sum(count for count, color in colors if color == (47, 158, 68)) > 1000  # frames of two images to keep
