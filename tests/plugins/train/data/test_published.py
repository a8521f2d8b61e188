"""Published data sets: lists that do not match, and missing files."""

import pytest

from pml_ext.errors import DataError
from pml_ext_train.data import image_sets

from .made_up import cub_folder, jpeg, sop_folder


def test_a_missing_image_of_a_set_is_named(tmp_path, count):
    place = cub_folder(tmp_path)
    with pytest.raises(DataError, match="expected 5,864 training images of 100 classes, found 12 of 4; is the list"):
        image_sets.cub(place)
    count("CUB")
    (place / "images" / "001.Bird_1" / "Bird_1.jpg").unlink()
    text = r"Bird_1.jpg: no such file, but images.txt lists it \(1 are missing\); unpack CUB_200_2011.tgz again"
    with pytest.raises(DataError, match=text):
        image_sets.cub(place, 64)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("7 4 1 bicycle_final/1000_0.JPG\n", "the image bicycle_final/1000_0.JPG is in train and in test"),
        ("7 4 1 mug_final/1003_9.JPG\n", "expected 6 test images of 2 classes, found 7 of 2; is this another edition"),
        ("7 4", "Ebay_test.txt, line 8: '7 4' does not have 4 columns; unpack the archive again"),
    ],
)
def test_a_list_with_a_wrong_line_is_refused(tmp_path, count, line, message):
    count("SOP")
    place = sop_folder(tmp_path)
    jpeg(place / "mug_final" / "1003_9.JPG")
    with (place / "Ebay_test.txt").open("a") as file:
        file.write(line)
    with pytest.raises(DataError, match=message):
        image_sets.sop(place, 64)


@pytest.mark.parametrize(
    ("exists", "message"),
    [(False, "cub: no such folder; for what to get"), (True, "cub has no images.txt; for what to get")],
)
def test_a_missing_set_says_what_to_get(tmp_path, monkeypatch, exists, message):
    monkeypatch.setenv("PML_EXT_DATA", str(tmp_path))
    if exists:
        (tmp_path / "cub").mkdir()
    with pytest.raises(DataError, match=f"{tmp_path}/{message}, and where to put it, type: pml-ext data cub"):
        image_sets.cub()
    cub_folder(tmp_path / "cub")
    with pytest.raises(DataError, match="expected 5,864 training images"):
        image_sets.cub()
