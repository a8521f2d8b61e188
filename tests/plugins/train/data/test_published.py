"""Published data sets: their splits, and lists that do not fit."""

import pytest

from pml_ext.errors import DataError
from pml_ext_train.data import image_sets

from .made_up import cub_folder, jpeg, sop_folder


def test_a_set_with_an_image_missing_says_which(tmp_path, count):
    with pytest.raises(DataError, match="expected 5,864 training images of 100 classes, found 12 of 4; is an image"):
        image_sets.cub(cub_folder(tmp_path / "whole"))
    count("CUB")
    place = cub_folder(tmp_path)
    (place / "images" / "001.Bird_1" / "Bird_1.jpg").unlink()
    message = (
        r"expected 6 training images of 2 classes, found 5 of 2; is an image missing\? "
        r".*001.Bird_1/Bird_1.jpg is not there: unpack CUB_200_2011.tgz again"
    )
    with pytest.raises(DataError, match=message):
        image_sets.cub(place, 64)


def test_lists_that_do_not_fit(tmp_path, count):
    count("SOP")
    place = sop_folder(tmp_path)
    test = place / "Ebay_test.txt"
    whole = test.read_text()
    test.write_text(whole + "7 4 1 bicycle_final/1000_0.JPG\n")
    with pytest.raises(DataError, match="the image bicycle_final/1000_0.JPG is in train and in test"):
        image_sets.sop(place, 64)
    test.write_text(whole + "7 4 1 mug_final/1003_9.JPG\n")
    jpeg(place / "mug_final" / "1003_9.JPG")
    with pytest.raises(DataError, match="expected 6 test images of 2 classes, found 7 of 2; is this another edition"):
        image_sets.sop(place, 64)
    test.write_text(whole + "7 4")
    with pytest.raises(DataError, match="Ebay_test.txt, line 8: found '7 4', wanted 4 columns; is the file cut"):
        image_sets.sop(place, 64)


def test_a_set_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("PML_EXT_DATA", str(tmp_path))
    with pytest.raises(
        DataError, match=f"{tmp_path}/cub: no such folder; pml-ext data cub says what to get and unpack"
    ):
        image_sets.cub()
    (tmp_path / "cub").mkdir()
    (tmp_path / "cub" / "CUB_200_2011.tgz").write_bytes(b"")
    with pytest.raises(DataError, match="cub has no images.txt; pml-ext data cub says what to get and unpack"):
        image_sets.cub()
    cub_folder(tmp_path / "cub")
    with pytest.raises(DataError, match="expected 5,864 training images"):
        image_sets.cub()
    (tmp_path / "cars_annos.mat").write_bytes(b"no matlab")
    with pytest.raises(DataError, match="cars_annos.mat: not the annotations of Cars196"):
        image_sets.cars196(tmp_path)
