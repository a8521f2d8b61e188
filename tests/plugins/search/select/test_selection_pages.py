"""The table and the contact sheet of selected images."""

import csv

import torch
from PIL import Image

from pml_ext_search.collection.embedded import Embedded
from pml_ext_search.select import selection_pages
from pml_ext_search.select.selection import select


def photos(place):
    place.mkdir()
    names = ["a b.png", "ü/,\"'.png", "ü/\udcff.png"]
    for number, name in enumerate(names):
        (place / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (40, 20), (80 * number, 0, 0)).save(place / name)
    return Embedded(place, names, torch.eye(3)[[0, 1, 2]])


def test_a_table_has_every_image_whatever_its_name(tmp_path):
    found = select(photos(tmp_path / "photos"), 3)
    selection_pages.write_table(found, tmp_path / "t.csv")
    with (tmp_path / "t.csv").open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        rows = list(csv.DictReader(file))
    assert rows == [
        {"path": "a b.png", "class": "", "rank": "1", "distance": ""},
        {"path": "ü/,\"'.png", "class": "ü", "rank": "2", "distance": "1.414214"},
        {"path": "ü/\udcff.png", "class": "ü", "rank": "3", "distance": "1.414214"},
    ]
