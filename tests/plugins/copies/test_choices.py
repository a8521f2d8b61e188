"""Copies of which somebody chose what to keep."""

import csv
import io
import unicodedata

import pytest
import torch

from pml_ext.errors import ConfigError, DataError
from pml_ext_copies.choices import keep_chosen, keep_listed
from pml_ext_copies.duplicates import find_duplicates, find_equal_vectors

from ..search.photographs import photograph, stacked, write_copies
from .test_duplicates import files_of, write_kinds


@pytest.fixture
def folder(tmp_path):
    """Three photographs of eight versions each."""
    for number in range(3):
        write_copies(tmp_path / "photos", number)
    return tmp_path / "photos"


def test_distances_are_from_the_image_that_is_kept(folder):
    """As those that a search finds whose rule keeps that image."""
    found = find_duplicates(files_of(folder))
    wanted = find_duplicates(files_of(folder), found.radius, "01-crop.png")
    place = [group.keep.path for group in found.groups].index("01-doubled.png")
    chosen = keep_chosen(found, {place: ["01-crop.png"]})
    (by_rule,) = [group for group in wanted.groups if group.keep.path == "01-crop.png"]
    group = chosen.groups[place]
    assert [image.path for image in group.images] == [image.path for image in by_rule.images]
    distances = [image.distance for image in by_rule.images]
    assert [image.distance for image in group.images] == pytest.approx(distances, abs=1e-6)
    assert group.images[1].distance > 0
    assert group.space == by_rule.space
    others = [place for place in range(3) if found.groups[place].keep.path != "01-doubled.png"]
    assert [chosen.groups[other] for other in others] == [found.groups[other] for other in others]
    (folder / "01-half.png").unlink()
    with pytest.raises(DataError, match="01-half.png.*; search for copies again"):
        keep_chosen(found, {place: ["01-crop.png"]})


def test_several_images_may_be_kept(tmp_path):
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
    (of_exact,) = [group for group in groups if group["kind"] == "exact"]
    assert of_exact["keep"] == "exact $1_3.png"
    assert [image["path"] for image in of_exact["images"]] == ["exact $1_3.png", "0.png"]
    assert {*of_exact} == {"kind", "keep", "images"}
    stand_in = [["exact $1_3.png", "same.bmp"], ["near.jpg", "exact $1_3.png"]]  # in place of 0.png, an exact copy
    assert [[image["path"] for image in group["images"]] for group in groups if group["kind"] != "exact"] == [
        stand_in[0],
        ["same.tif", "1.png"],
        stand_in[1],
    ]
    assert ["exact $1_3.png", "same.bmp", 0.0] in chosen.to_spare().as_json()["pairs"]
    spare = ["0.png", "exact $1_3.png", "1.png", "same.bmp"]
    sizes = {image.path: image.bytes for group in found.groups for image in group.images}
    assert chosen.as_json()["space"] == sum(sizes[name] for name in spare)
    with pytest.raises(DataError, match="no image is kept"):
        keep_chosen(found, {0: ["elsewhere.png"]})


def test_a_saved_table_keeps_the_same_again(tmp_path, recwarn):
    """Also where an image takes the place of another one in groups of another kind."""
    found = find_duplicates(files_of(write_kinds(tmp_path / "images")))
    paths = [[image.path for image in group.images] for group in found.groups]
    exact = paths.index(["0.png", "exact $1_3.png", "sub/exact.png"])
    same = paths.index(["1.png", "same.tif"])
    chosen = keep_chosen(found, {exact: {"sub/exact.png", "exact $1_3.png"}, same: ["same.tif"]})
    assert chosen != found
    table = tmp_path / "copies.csv"
    table.write_text(chosen.as_csv())
    assert keep_listed(found, table) == chosen
    table.write_text(found.as_csv())
    assert keep_listed(found, table) == found
    assert not [one for one in recwarn if "without an image" in str(one.message)]


def test_images_without_a_row_are_kept(folder, tmp_path):
    found = find_duplicates(files_of(folder))
    table = tmp_path / "copies.csv"
    rows = "near;FALSE;01-doubled.png\nnear; yes ;01-crop.png\nexact;no;02-half.png\n;;\n"  # as spreadsheets write it
    table.write_text(f"kind;keep;path\n{rows}")
    with pytest.warns(UserWarning, match=r"1 row without an image .* line 4: exact, 02-half.png"):
        chosen = keep_listed(found, table)
    (group,) = [group for group in chosen.groups if group.keep.path.startswith("01")]
    assert [image.path for image in group.others] == ["01-doubled.png"]
    others = [group for group in chosen.groups if not group.keep.path.startswith("01")]
    assert [len(group.images) for group in others] == [8, 8]
    assert [group.others for group in others] == [[], []]


@pytest.mark.parametrize(("in_folder", "in_table"), [("NFD", "NFC"), ("NFC", "NFD"), ("NFD", "NFD")])
def test_composed_and_decomposed_names_are_equal(tmp_path, recwarn, in_folder, in_table):
    folder = tmp_path / unicodedata.normalize(in_folder, "Zo\u00eb")
    folder.mkdir()
    names = [unicodedata.normalize(in_folder, f"caf\u00e9 {number}.png") for number in range(2)]
    for name in names:
        photograph(0).save(folder / name)
    found = find_duplicates(files_of(tmp_path))
    kept = found.groups[0].images[1].path
    chosen = keep_chosen(found, {0: [kept]})
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
