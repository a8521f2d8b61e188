"""Published data sets: their splits, and lists that do not fit."""

import dataclasses
import shutil

import pytest

from pml_ext.data import photographs, published_sets
from pml_ext.data.published import Count
from pml_ext.errors import DataError

from .made_up import cars_folder, cub_folder, imagenet_folder, inshop_folder, jpeg, sop_folder

COUNTS = {"train": Count(6, 2), "test": Count(6, 2)}


@pytest.fixture
def count(monkeypatch):
    """Makes other counts the published ones of a set."""

    def replace(name, counts=COUNTS, module=photographs):
        monkeypatch.setattr(module, name, dataclasses.replace(getattr(module, name), counts=counts))

    return replace


def test_cub_trains_on_the_first_classes(tmp_path, count):
    count("CUB")
    place = cub_folder(tmp_path / "CUB_200_2011")
    for root in (place, tmp_path):  # the folder itself, or the one above
        splits = photographs.cub(root, 64)
        assert splits.train.labels.tolist() == [0] * 3 + [1] * 3
        assert splits.test.labels.tolist() == [2] * 3 + [3] * 3
    assert splits.test.class_names == [f"{n:03}.Bird_{n}" for n in range(1, 5)]
    assert splits.test.paths[0] == place / "images" / "003.Bird_3" / "Bird_0.jpg"
    assert (splits.image_size, splits.channels, splits.crop) == (64, 3, True)
    assert tuple(splits.train[0][0].shape) == (3, 16, 20)
    boxed = photographs.cub(place, 64, boxes=True)
    assert tuple(boxed.train[0][0].shape) == (3, 8, 10)
    assert tuple(boxed.test.subset([1, 2])[0][0].shape) == (3, 8, 10)


def test_cars_are_split_by_class_and_products_by_their_lists(tmp_path, count):
    count("CARS196")
    splits = photographs.cars196(cars_folder(tmp_path), 64)
    assert splits.train.labels.tolist() == [0, 1] * 3
    assert splits.test.labels.tolist() == [2, 3] * 3
    assert splits.train.class_names[0] == "Maker 0 2012"
    assert splits.test.paths[0].name == "000003.jpg"
    count("SOP")
    sop_folder(tmp_path / "Stanford_Online_Products")
    splits = photographs.sop(tmp_path, 64)
    assert splits.train.labels.tolist() == [0] * 3 + [1] * 3
    assert splits.test.labels.tolist() == [2] * 3 + [3] * 3
    assert splits.train.class_names == ["bicycle_final/1000", "mug_final/1001", "bicycle_final/1002", "mug_final/1003"]


@pytest.mark.parametrize("layout", ["old", "new"])
def test_inshop_has_queries_and_a_gallery(tmp_path, count, layout):
    count("INSHOP", {"train": Count(6, 2), "query": Count(2, 2), "gallery": Count(4, 2)})
    inshop_folder(tmp_path)
    if layout == "new":
        for name, folder in (("list_eval_partition.txt", "Eval"), ("img", "Img")):
            (tmp_path / folder).mkdir()
            shutil.move(tmp_path / name, tmp_path / folder)
    splits = photographs.inshop(tmp_path, 64)
    assert splits.test is None
    assert splits.train.labels.tolist() == [0] * 3 + [1] * 3
    assert splits.query.labels.tolist() == [2, 3]
    assert splits.gallery.labels.tolist() == [2, 2, 3, 3]
    assert splits.query.class_names == [f"id_{n:08}" for n in range(4)]
    assert splits.gallery.paths[-1].name == "02_1_front.jpg"
    assert tuple(splits.gallery[0][0].shape) == (3, 16, 20)


def test_imagenet_is_divided_as_the_papers_do(tmp_path, count, monkeypatch):
    place = imagenet_folder(tmp_path)
    count("IMAGENET", {"train": Count(8, 2), "gallery": Count(6, 2), "query": Count(2, 2)})
    monkeypatch.setattr(photographs, "PDDM", {"train": Count(None, 3), "test": Count(None, 1)})
    splits = photographs.imagenet(place, 64)
    assert sorted(splits.train.labels.tolist()) == [0] * 4 + [1] * 4  # validation images train as well
    assert splits.gallery.labels.tolist() == [2] * 3 + [3] * 3
    assert [path.parent.parent.name for path in splits.query.paths] == ["val", "val"]
    assert splits.train.class_names[0] == "n01440764"
    pddm = photographs.imagenet(place, 64, "pddm")
    assert (len(pddm.train), pddm.test.labels.tolist()) == (12, [3] * 4)
    shutil.rmtree(place / "val" / "n01440764")
    with pytest.raises(DataError, match="train and val differ in their folders, n01440764 first"):
        photographs.imagenet(place, 64)


def test_a_set_with_an_image_missing_says_which(tmp_path, count):
    with pytest.raises(DataError, match="expected 5,864 training images of 100 classes, found 12 of 4; is an image"):
        photographs.cub(cub_folder(tmp_path / "whole"))
    count("CUB")
    place = cub_folder(tmp_path)
    (place / "images" / "001.Bird_1" / "Bird_1.jpg").unlink()
    message = (
        r"expected 6 training images of 2 classes, found 5 of 2; is an image missing\? "
        r".*001.Bird_1/Bird_1.jpg is not there: unpack CUB_200_2011.tgz again"
    )
    with pytest.raises(DataError, match=message):
        photographs.cub(place, 64)


def test_lists_that_do_not_fit(tmp_path, count):
    count("SOP")
    place = sop_folder(tmp_path)
    test = place / "Ebay_test.txt"
    whole = test.read_text()
    test.write_text(whole + "7 4 1 bicycle_final/1000_0.JPG\n")
    with pytest.raises(DataError, match="the image bicycle_final/1000_0.JPG is in train and in test"):
        photographs.sop(place, 64)
    test.write_text(whole + "7 4 1 mug_final/1003_9.JPG\n")
    jpeg(place / "mug_final" / "1003_9.JPG")
    with pytest.raises(DataError, match="expected 6 test images of 2 classes, found 7 of 2; is this another edition"):
        photographs.sop(place, 64)
    test.write_text(whole + "7 4")
    with pytest.raises(DataError, match="Ebay_test.txt, line 8: found '7 4', wanted 4 columns; is the file cut"):
        photographs.sop(place, 64)


def test_a_set_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("PML_EXT_DATA", str(tmp_path))
    with pytest.raises(
        DataError, match=f"{tmp_path}/cub: no such folder; pml-ext data cub says what to get and unpack"
    ):
        photographs.cub()
    (tmp_path / "cub").mkdir()
    (tmp_path / "cub" / "CUB_200_2011.tgz").write_bytes(b"")
    with pytest.raises(DataError, match="cub has no images.txt; pml-ext data cub says what to get and unpack"):
        photographs.cub()
    cub_folder(tmp_path / "cub")
    with pytest.raises(DataError, match="expected 5,864 training images"):
        photographs.cub()
    (tmp_path / "cars_annos.mat").write_bytes(b"no matlab")
    with pytest.raises(DataError, match="cars_annos.mat: not the annotations of Cars196"):
        photographs.cars196(tmp_path)


def test_the_published_counts():
    counts = {name: about.counts for name, about in published_sets().items()}
    assert counts == {
        "cub": {"train": (5864, 100), "test": (5924, 100)},
        "cars196": {"train": (8054, 98), "test": (8131, 98)},
        "sop": {"train": (59551, 11318), "test": (60502, 11316)},
        "inshop": {"train": (25882, 3997), "query": (14218, 3985), "gallery": (12612, 3985)},
        "imagenet": {"train": (667289, 500), "gallery": (638878, 500), "query": (25000, 500)},
        "omniglot": {"train": (19280, 964), "test": (13180, 659)},
        "omniglot-small": {"train": (2720, 136), "test": (2120, 106)},
    }
