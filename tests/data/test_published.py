"""Published data sets in small folders of their own layouts: splits, labels, names, counts and refusals."""

import dataclasses
import os
import shutil
from pathlib import Path

import pytest

from pml_ext.data import omniglot, photographs, published_sets, table
from pml_ext.data.published import Count
from pml_ext.errors import ConfigError, DataError

from .made_up import cars_folder, cub_folder, imagenet_folder, inshop_folder, jpeg, omniglot_zip, sop_folder

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


def table_of(place: Path, rows: list[str], columns="label,path,split,is_query,is_gallery,x_1,x_2,y_1,y_2") -> Path:
    for number in range(8):
        jpeg(place / "photos" / f"{number}.jpg", 20 * number)
    file = place / "mine.csv"
    file.write_text("\n".join([columns, *rows]) + "\n")
    return file


TRAIN = ["10,photos/0.jpg,train,,,,,,", "10,photos/1.jpg,train,,,2,8,3,7", "9,photos/2.jpg,train,,,,,,"]


def test_a_table_of_ones_own(tmp_path):
    tested = [f"{label},photos/{n}.jpg,validation,True,True,,,," for n, label in ((3, 7), (4, 7), (5, 8))]
    splits = table(path=str(file := table_of(tmp_path, TRAIN + tested)))
    file.write_text(file.read_text().replace(",", ";"))
    assert table(path=str(file)).test.paths == splits.test.paths
    assert splits.train.class_names == ["10", "7", "8", "9"]
    assert splits.train.labels.tolist() == [0, 0, 3]
    assert splits.test.labels.tolist() == [1, 1, 2]
    assert tuple(splits.train[1][0].shape) == (3, 4, 6)  # rows 3 to 7 and columns 2 to 8
    assert tuple(splits.train[0][0].shape) == (3, 16, 20)
    short = [",".join(row.split(",")[:3]) for row in TRAIN + tested]
    (tmp_path / "elsewhere").mkdir()
    file = table_of(tmp_path / "elsewhere", short, "label,path,split")
    assert table(tmp_path, path=str(file)).test.paths[0] == tmp_path / "photos" / "3.jpg"


def test_a_table_with_queries_and_a_gallery(tmp_path):
    tested = [
        "7,photos/3.jpg,validation,True,False,,,,",
        "7,photos/4.jpg,validation,False,True,,,,",
        "8,photos/5.jpg,validation,False,True,,,,",
    ]
    splits = table(path=str(table_of(tmp_path, TRAIN + tested)))
    assert splits.test is None
    assert [path.name for path in splits.query.paths] == ["3.jpg"]
    assert [path.name for path in splits.gallery.paths] == ["4.jpg", "5.jpg"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("7,photos/3.jpg,test,,,,,,", "line 5: found split 'test': .*'train' or 'validation'"),
        ("7,photos/99.jpg,validation,True,True,,,,", "photos/99.jpg: no such file, though .*mine.csv lists it"),
        ("10,photos/3.jpg,validation,True,True,,,,", "1 of the classes of train are in validation too, 10 first"),
        ("7,photos/0.jpg,validation,True,True,,,,", "photos/0.jpg is in train and in validation"),
        ("7,photos/3.jpg,validation,often,True,,,,", "line 5: found is_query 'often': .*boolean"),
        ("7,photos/3.jpg,validation,True,True,5,5,1,2", "has no inside; wanted x_1 below x_2"),
        ("7,photos/3.jpg,validation,True,True,,,,\n7,photos/4.jpg,validation,True,False,,,,", "1 of 2 images of"),
        ("7,photos/3.jpg,validation,True,True,,,,", "1 images for test; wanted 2 or more"),
        ('"7"x,photos/3.jpg,validation,True,True,,,,', "cannot be read as a table .*line 5.*balanced"),
        (
            "7|8,photos/3.jpg,validation,True,True,,,,",
            r"photos/3.jpg has several labels in one cell, '7\\|8'; .*keep one",
        ),
    ],
)
def test_tables_that_do_not_serve(tmp_path, row, message):
    with pytest.raises(DataError, match=message):
        table(path=str(table_of(tmp_path, [*TRAIN, row])))


def test_a_table_names_columns_that_it_does_not_use(tmp_path):
    rows = [f"{n // 2},photos/{n}.jpg,{'train' if n < 4 else 'validation'},a,1" for n in range(8)]
    splits = table(path=str(table_of(tmp_path, rows, "label,path,split,sequence,x1")))
    assert "mine.csv: not used: sequence, x1; the columns that are used are label, path, split," in splits.note
    assert "leaves a query's own sequence out of its results, pml-ext does not" in splits.note
    misspelled = table(path=str(table_of(tmp_path, rows, "label,path,split,colour,x1"))).note
    assert "not used: colour, x1;" in misspelled
    assert "sequence" not in misspelled
    assert table(path=str(table_of(tmp_path, [row[:-4] for row in rows], "label,path,split"))).note == ""


def test_a_table_that_is_a_pipe_or_a_device(tmp_path):
    os.mkfifo(tmp_path / "mine.csv")
    for file in (Path(os.devnull), tmp_path, tmp_path / "mine.csv"):
        with pytest.raises(DataError, match=f"{file}: not a regular file; wanted table:FILE.csv"):
            table(path=str(file))


def test_tables_that_are_none(tmp_path):
    with pytest.raises(DataError, match="no column split among label, path; wanted label, path and split"):
        table(path=str(table_of(tmp_path, ["1,a"], "label,path")))
    tested = ["10,photos/3.jpg,validation,True,True,,,,", "10,photos/4.jpg,validation,True,True,,,,"]
    assert len(table(path=str(table_of(tmp_path, TRAIN + tested)), shared_classes=True).test) == 2


@pytest.mark.parametrize(
    ("name", "factory", "files"),
    [
        ("ABOUT", omniglot.omniglot, (omniglot.BACKGROUND, omniglot.EVALUATION)),
        ("SMALL", omniglot.omniglot_small, (omniglot.TRAIN, omniglot.TEST)),
    ],
)
def test_omniglot_tests_on_unseen_alphabets(tmp_path, count, name, factory, files):
    omniglot_zip(tmp_path / files[0], {"Greek": 3, "Latin": 2})
    omniglot_zip(tmp_path / files[1], {"Greek": 3, "Sanskrit": 4})
    with pytest.raises(DataError, match=r"expected (19,280|2,720) training images of .* classes, found 15 of 5"):
        factory(tmp_path)
    count(name, {"train": Count(15, 5), "test": Count(12, 4)}, omniglot)
    splits = factory(tmp_path, image_size=21)
    assert splits.test.labels.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert {name.partition("/")[0] for name in splits.train.class_names} == {"Greek", "Latin"}
    assert splits.test.class_names[0] == "Sanskrit/character01"
    image, _ = splits.test[0]
    assert tuple(image.shape) == (1, 21, 21)
    assert image[0, :3].min() == 255  # ink, drawn in the uppermost rows, is bright
    assert image[0, 5:].max() == 0
    assert (splits.image_size, splits.channels) == (21, 1)
    with pytest.raises(ConfigError, match="from 8 to 105 pixels, not 500"):
        factory(tmp_path, image_size=500)
    (tmp_path / files[1]).write_bytes(b"no zip")
    with pytest.raises(DataError, match=f"{files[1]}: not a readable zip"):
        factory(tmp_path)
    (tmp_path / files[1]).unlink()
    with pytest.raises(DataError, match=f"has no {files[1]}"):
        factory(tmp_path)
