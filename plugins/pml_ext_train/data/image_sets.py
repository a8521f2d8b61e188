"""CUB-200-2011, Cars196, Stanford Online Products, In-Shop, and ImageNet."""

import dataclasses
import os
from pathlib import Path
from typing import Any, Literal

from pml_ext.errors import ConfigError, DataError, one_line

from .published import Archive, Count, Counts, DatasetInfo, Entry, assemble, find_root, read_lines
from .reading import Box
from .splits import DataSplits

CUB = DatasetInfo(
    name="cub",
    title="Caltech-UCSD Birds-200-2011",
    page="https://www.vision.caltech.edu/datasets/cub_200_2011/",
    license="images from Flickr, for non-commercial research and education",
    archives=(
        Archive(
            "CUB_200_2011.tgz",
            1_150,
            "97eceeb196236b17998738112f37df78",
            "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
        ),
    ),
    layout="CUB_200_2011/ with images/, images.txt, image_class_labels.txt, classes.txt, bounding_boxes.txt",
    counts={"train": Count(5_864, 100), "test": Count(5_924, 100)},
    note="Classes 1 to 100 are for training, 101 to 200 for tests; train_test_split.txt belongs to another protocol.",
)
CARS196 = DatasetInfo(
    name="cars196",
    title="Stanford Cars",
    page="https://ai.stanford.edu/~jkrause/cars/car_dataset.html (offline; search for copies by the file names)",
    license="for research; the images belong to their owners",
    archives=(
        Archive("car_ims.tgz", 1_960, "d5c8f0aa497503f355e17dc7886c3f14"),
        Archive("cars_annos.mat", 1, "b407c6086d669747186bd1d764ff9dbc", unpack=False),
    ),
    layout="car_ims/ with 000001.jpg and so on, and cars_annos.mat",
    counts={"train": Count(8_054, 98), "test": Count(8_131, 98)},
    note="Classes 1 to 98 are for training, 99 to 196 for tests; cars_annos.mat has the split of another protocol.",
)
CARS196_OFFICIAL_TRAIN: Counts = {"train": Count(4_052, 98), "test": Count(4_092, 98)}
SOP = DatasetInfo(
    name="sop",
    title="Stanford Online Products",
    page="https://cvgl.stanford.edu/projects/lifted_struct/",
    license="MIT for the lists; the images are from eBay, for research",
    archives=(Archive("Stanford_Online_Products.zip", 3_080, "7f73d41a2f44250d4779881525aea32e"),),
    layout="Stanford_Online_Products/ with Ebay_train.txt, Ebay_test.txt and bicycle_final/, cabinet_final/, ...",
    counts={"train": Count(59_551, 11_318), "test": Count(60_502, 11_316)},
)
LIST = "list_eval_partition.txt"
INSHOP = DatasetInfo(
    name="inshop",
    title="DeepFashion: In-shop Clothes Retrieval Benchmark",
    page="https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html",
    license="for non-commercial research, after agreement with its authors",
    archives=(Archive("img.zip", 480), Archive(LIST, 5, unpack=False)),
    layout=f"img/ (or Img/img/) with MEN/ and WOMEN/, and {LIST} (or Eval/{LIST})",
    counts={"train": Count(25_882, 3_997), "query": Count(14_218, 3_985), "gallery": Count(12_612, 3_985)},
)
IMAGENET = DatasetInfo(
    name="imagenet",
    title="ImageNet, ILSVRC 2012",
    page="https://www.image-net.org/challenges/LSVRC/2012/",
    license="for non-commercial research, after registration",
    archives=(
        Archive("ILSVRC2012_img_train.tar", 147_897, "1d675b47d978889d74fa0da5fadfb00e"),
        Archive("ILSVRC2012_img_val.tar", 6_745, "29b22e2961454d5413ddabcf34fc5622"),
        Archive("wordnet.is_a.txt", 2, unpack=False),  # needed only for the argument ``hierarchy``
    ),
    layout="train/n01440764/*.JPEG and val/n01440764/*.JPEG, as torchvision.datasets.ImageNet unpacks them",
    counts={"train": Count(667_289, 500), "gallery": Count(638_878, 500), "query": Count(25_000, 500)},
    note="Classes are ordered by WordNet id. split = 'pddm' trains on 800 classes and tests on 200. Zero-shot learning "
    "needs hierarchy = 'wordnet.is_a.txt', the list of parents and children that ImageNet publishes.",
)
PDDM: Counts = {"train": Count(None, 800), "test": Count(None, 200)}


def cub(root: Path | None = None, image_size: int = 224, boxes: bool = False) -> DataSplits:
    """CUB-200-2011: 5,864 images of 100 bird species to train, 5,924 of 100 others to test.

    Args:
        root: the folder ``CUB_200_2011`` or its parent.
        image_size: height and width of the network's input, in pixels.
        boxes: whether to crop images to their bounding boxes.
    """
    place = find_root(CUB, root, "images.txt", ["CUB_200_2011"])
    names = dict(read_lines(place / "classes.txt", 2))
    classes = dict(read_lines(place / "image_class_labels.txt", 2))
    box_of_image: dict[str, list[str]] = {}
    if boxes:
        for image, *numbers in read_lines(place / "bounding_boxes.txt", 5):
            box_of_image[image] = numbers
    parts: dict[str, list[Entry]] = {"train": [], "test": []}
    for image, path in read_lines(place / "images.txt", 2):
        try:
            number = classes[image]
            box = None
            if boxes:
                left, top, width, height = map(float, box_of_image[image])
                box = Box(left, top, left + width, top + height)
            part = "train" if int(number) <= CUB.counts["train"].classes else "test"
            parts[part].append(Entry(path, names[number], box))
        except (KeyError, ValueError) as error:
            raise DataError(
                f"{place}: image {image} ({path}) has no valid class or box ({one_line(error)}); unpack "
                "CUB_200_2011.tgz again"
            ) from None
    return assemble(CUB, place / "images.txt", place / "images", parts, image_size, list(names.values()))


def cars196(
    root: Path | None = None, image_size: int = 224, boxes: bool = False, official: Literal["train"] | None = None
) -> DataSplits:
    """Cars196: 8,054 images of 98 car models to train, 8,131 of 98 others to test.

    Args:
        root: the folder with ``car_ims`` and ``cars_annos.mat``.
        image_size: height and width of the network's input, in pixels.
        boxes: whether to crop images to their bounding boxes.
        official: ``"train"`` for only the training images of the set's own split: 4,052 of the first 98 car models to
            train, 4,092 of the others to test.
    """
    about = CARS196
    if official is not None:
        if official != "train":
            raise ConfigError(
                f"cars196: official = {official!r} is unknown; type 'train', or leave it out for all images"
            )
        about = dataclasses.replace(CARS196, counts=CARS196_OFFICIAL_TRAIN)
    from scipy.io import loadmat

    place = find_root(CARS196, root, "cars_annos.mat", ["cars196", "CARS196"])
    path = place / "cars_annos.mat"
    parts: dict[str, list[Entry]] = {"train": [], "test": []}
    try:
        tables: dict[str, Any] = loadmat(path, squeeze_me=True)
        names = dict(enumerate(map(str, tables["class_names"]), 1))
        rows = tables["annotations"]
        for row in rows:
            if official is not None and int(row["test"]) == 1:
                continue
            number = int(row["class"])
            box = None
            if boxes:
                left, top, right, bottom = (float(row[f"bbox_{corner}"]) for corner in ("x1", "y1", "x2", "y2"))
                box = Box(left - 1, top - 1, right, bottom)  # the first pixel is 1, and the last belongs to the box
            part = "train" if number <= about.counts["train"].classes else "test"
            parts[part].append(Entry(str(row["relative_im_path"]), names[number], box))
    except Exception as error:  # scipy raises many types for a damaged file
        raise DataError(
            f"{path}: not the annotations of Cars196 ({one_line(error)}); download the file again"
        ) from None
    return assemble(about, path, place, parts, image_size, list(names.values()))


def sop(root: Path | None = None, image_size: int = 224) -> DataSplits:
    """Stanford Online Products, online shop photographs of 22,634 products.

    59,551 images of 11,318 products to train, 60,502 of 11,316 others to test.

    Args:
        root: the folder ``Stanford_Online_Products`` or its parent.
        image_size: height and width of the network's input, in pixels.
    """
    place = find_root(SOP, root, "Ebay_train.txt", ["Stanford_Online_Products"])
    names: dict[str, str] = {}  # by class id
    parts: dict[str, list[Entry]] = {"train": [], "test": []}
    for part, entries in parts.items():
        for _, number, _, path in read_lines(place / f"Ebay_{part}.txt", 4, header=1):
            product = names.setdefault(number, path.rpartition("_")[0])
            entries.append(Entry(path, product))
    return assemble(SOP, place / "Ebay_test.txt", place, parts, image_size)


def inshop(root: Path | None = None, image_size: int = 224) -> DataSplits:
    """In-Shop, photographs of 7,982 garments with queries and a gallery.

    25,882 images of 3,997 garments to train; 14,218 queries and 12,612 gallery images of 3,985 others.

    Args:
        root: the folder with ``list_eval_partition.txt``, or a folder above.
        image_size: height and width of the network's input, in pixels.
    """
    listed = find_root(INSHOP, root, LIST, ["Eval", "Anno", "In-shop Clothes Retrieval Benchmark/Eval"]) / LIST
    parts: dict[str, list[Entry]] = {"train": [], "query": [], "gallery": []}
    for path, item, part in read_lines(listed, 3, header=2):
        if part not in parts:
            raise DataError(f"{listed}: {part!r} of {path} is not train, query or gallery; download the file again")
        parts[part].append(Entry(path, item))
    return assemble(INSHOP, listed, _folder_of_img(listed.parent), parts, image_size)


def _folder_of_img(place: Path) -> Path:
    """The folder with ``img``, or where it should be, near the folder of In-Shop's list."""
    above = place.parent if place.name in ("Eval", "Anno") else place
    for candidate in (place, above, above / "Img"):
        if (candidate / "img").is_dir():
            return candidate
    return above


def imagenet(
    root: Path | None = None,
    image_size: int = 224,
    split: Literal["cbml", "pddm"] = "cbml",
    hierarchy: Path | None = None,
) -> DataSplits:
    """ImageNet 2012: 500 classes to train, validation images included, and 500 to test.

    Of the test classes, validation images are queries, and training images the gallery. Classes are ordered by WordNet
    id. ``split="pddm"`` trains on 800 classes and tests on the last 200, each image against all others.

    Args:
        root: the folder with ``train`` and ``val``.
        image_size: height and width of the network's input, in pixels.
        split: ``"cbml"`` or ``"pddm"``.
        hierarchy: for zero-shot learning, a file of WordNet ids, a parent and a child per line (``wordnet.is_a.txt``).
    """
    about = IMAGENET if split == "cbml" else dataclasses.replace(IMAGENET, counts=PDDM)
    place = find_root(about, root, "train", ["ILSVRC2012", "ILSVRC/Data/CLS-LOC"])
    find_root(about, place, "val")
    train = sorted(path.name for path in (place / "train").glob("n*"))
    val = sorted(path.name for path in (place / "val").glob("n*"))
    if train != val:
        first = min(set(train) ^ set(val))
        raise DataError(f"{place}: train and val have different folders, {first} first; both need one per WordNet id")
    tested = set(train[about.counts["train"].classes :])
    parts: dict[str, list[Entry]] = {part: [] for part in about.counts}
    gallery, query = ("gallery", "query") if "query" in about.counts else ("test", "test")
    for folder, tested_part in (("train", gallery), ("val", query)):
        for name in train:
            part = tested_part if name in tested else "train"
            for file in sorted(os.listdir(place / folder / name)):
                if file.upper().endswith((".JPEG", ".JPG")):
                    parts[part].append(Entry(f"{folder}/{name}/{file}", name))
    splits = assemble(about, place / "train", place, parts, image_size, train)
    if hierarchy is None:
        return splits
    return dataclasses.replace(splits, parents=read_wordnet_parents(hierarchy))


def read_wordnet_parents(path: Path) -> dict[str, list[str]]:
    """Parents of each WordNet id, from a file with one parent and one child per line."""
    parents: dict[str, list[str]] = {}
    for parent, child in read_lines(path, 2):
        parents.setdefault(child, []).append(parent)
    return parents
