"""Published sets of images: how each is split."""

import shutil

import pytest

from pml_ext.errors import ConfigError, DataError
from pml_ext_train.data import image_sets
from pml_ext_train.data.published import Count

from .made_up import cars_folder, cub_folder, imagenet_folder, inshop_folder, sop_folder

QUERIES = {"train": Count(6, 2), "query": Count(2, 2), "gallery": Count(4, 2)}
IMAGENET = {"train": Count(8, 2), "gallery": Count(6, 2), "query": Count(2, 2)}


def labels_of(splits):
    return {name: part.labels.tolist() for name, part in (("train", splits.train), *splits.tested().items())}


FIRST_HALF = {"train": [0] * 3 + [1] * 3, "test": [2] * 3 + [3] * 3}


@pytest.mark.parametrize("above", [False, True])
def test_cub_trains_on_the_first_classes(tmp_path, count, above):
    count("CUB")
    place = cub_folder(tmp_path / "CUB_200_2011")
    splits = image_sets.cub(tmp_path if above else place, 64)
    assert labels_of(splits) == FIRST_HALF
    assert splits.test.class_names == [f"{n:03}.Bird_{n}" for n in range(1, 5)]
    assert splits.test.paths[0] == place / "images" / "003.Bird_3" / "Bird_0.jpg"
    assert (splits.image_size, splits.channels, splits.crop) == (64, 3, True)
    boxed = image_sets.cub(place, 64, boxes=True)
    assert tuple(boxed.train[0][0].shape) == tuple(boxed.test.subset([1, 2])[0][0].shape) == (3, 8, 10)


def test_cars_train_on_the_first_classes(tmp_path, count):
    count("CARS196")
    splits = image_sets.cars196(cars_folder(tmp_path), 64)
    assert labels_of(splits) == {"train": [0, 1] * 3, "test": [2, 3] * 3}
    assert (splits.train.class_names[0], splits.test.paths[0].name) == ("Maker 0 2012", "000003.jpg")
    (tmp_path / "cars_annos.mat").write_bytes(b"no matlab")
    with pytest.raises(DataError, match="cars_annos.mat: not the annotations of Cars196"):
        image_sets.cars196(tmp_path)


def test_official_training_cars_may_be_used_alone(tmp_path, monkeypatch, count):
    count("CARS196")
    place = cars_folder(tmp_path)
    with pytest.raises(DataError, match="expected 4,052"):
        image_sets.cars196(place, 64, official="train")
    monkeypatch.setattr(image_sets, "CARS196_OFFICIAL_TRAIN", {"train": Count(4, 2), "test": Count(4, 2)})
    splits = image_sets.cars196(place, 64, boxes=True, official="train")
    assert [path.name for path in splits.train.paths] == [f"{n:06}.jpg" for n in (1, 2, 9, 10)]
    assert splits.test.labels.tolist() == [2, 3] * 2
    assert tuple(splits.test[0][0].shape) == (3, 8, 10)  # pixels 2 to 9 and 3 to 12
    with pytest.raises(ConfigError, match="type 'train', or leave it out"):
        image_sets.cars196(place, 64, official="test")


def test_products_are_split_by_their_lists(tmp_path, count):
    count("SOP")
    sop_folder(tmp_path / "Stanford_Online_Products")
    splits = image_sets.sop(tmp_path, 64)
    assert labels_of(splits) == FIRST_HALF
    assert splits.train.class_names == ["bicycle_final/1000", "mug_final/1001", "bicycle_final/1002", "mug_final/1003"]


@pytest.mark.parametrize("layout", ["old", "new"])
def test_inshop_has_queries_and_a_gallery(tmp_path, count, layout):
    count("INSHOP", QUERIES)
    inshop_folder(tmp_path)
    if layout == "new":
        for name, folder in (("list_eval_partition.txt", "Eval"), ("img", "Img")):
            (tmp_path / folder).mkdir()
            shutil.move(tmp_path / name, tmp_path / folder)
    splits = image_sets.inshop(tmp_path, 64)
    assert labels_of(splits) == {"train": [0] * 3 + [1] * 3, "query": [2, 3], "gallery": [2, 2, 3, 3]}
    assert splits.query.class_names == [f"id_{n:08}" for n in range(4)]
    assert splits.gallery.paths[-1].name == "02_1_front.jpg"
    assert tuple(splits.gallery[0][0].shape) == (3, 16, 20)


def test_imagenet_is_divided_as_in_the_papers(tmp_path, count, monkeypatch):
    place = imagenet_folder(tmp_path)
    count("IMAGENET", IMAGENET)
    monkeypatch.setattr(image_sets, "PDDM", {"train": Count(None, 3), "test": Count(None, 1)})
    splits = image_sets.imagenet(place, 64)
    assert sorted(splits.train.labels.tolist()) == [0] * 4 + [1] * 4  # validation images train as well
    assert splits.gallery.labels.tolist() == [2] * 3 + [3] * 3
    assert [path.parent.parent.name for path in splits.query.paths] == ["val", "val"]
    assert splits.train.class_names[0] == "n01440764"
    pddm = image_sets.imagenet(place, 64, "pddm")
    assert (len(pddm.train), pddm.test.labels.tolist()) == (12, [3] * 4)
    shutil.rmtree(place / "val" / "n01440764")
    with pytest.raises(DataError, match="train and val have different folders, n01440764 first"):
        image_sets.imagenet(place, 64)


@pytest.mark.parametrize(
    ("name", "old", "new", "text"),
    [
        ("bounding_boxes.txt", "2 2.0", "2 left", r"image 2 \(001.Bird_1/Bird_1.jpg\) has no valid .*ValueError.*;"),
        ("image_class_labels.txt", "5 2", "5 9", r"image 5 .*KeyError: '9'\); unpack CUB_200_2011.tgz again"),
    ],
)
def test_an_image_without_class_or_box_is_named(tmp_path, count, name, old, new, text):
    count("CUB")
    file = cub_folder(tmp_path) / name
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(DataError, match=text):
        image_sets.cub(tmp_path, 64, boxes=True)
    if name.startswith("bounding"):
        assert len(image_sets.cub(tmp_path, 64).train) == 6  # boxes are not read unless they are used


def test_an_unknown_part_of_inshop_is_named(tmp_path, count):
    count("INSHOP", QUERIES)
    file = inshop_folder(tmp_path) / "list_eval_partition.txt"
    file.write_text(file.read_text().replace("query", "probe", 1))
    text = "'probe' of img/.*00_1_front.jpg is not train, query or gallery; download the file again"
    with pytest.raises(DataError, match=text):
        image_sets.inshop(tmp_path, 64)


def test_parents_are_listed_beside_their_children(tmp_path, count):
    file = tmp_path / "wordnet.is_a.txt"
    file.write_text("n1 n01440764\nn2 n01440764\nn1 n01440765\nn0 n1\n")
    count("IMAGENET", IMAGENET)
    splits = image_sets.imagenet(imagenet_folder(tmp_path / "all"), 64, hierarchy=file)
    assert splits.parents == {"n01440764": ["n1", "n2"], "n01440765": ["n1"], "n1": ["n0"]}
