"""The table, the contact sheet and the page of copies."""

import csv
import io
import re
import shutil

import pytest
from PIL import Image

from pml_ext_copies import pages as pages
from pml_ext_copies.duplicates import find_duplicates

from ..search.photographs import photograph
from .test_duplicates import files_of


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
