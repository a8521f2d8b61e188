"""CUB-200-2011: photographs of birds."""

from __future__ import annotations

from pathlib import Path

from ..errors import DataError, one_line
from .published import About, Archive, Count, Entry, assemble, place_of, read_lines
from .reading import Box
from .splits import DataSplits

ABOUT = About(
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
    note="Classes 1 to 100 train, 101 to 200 test; train_test_split.txt is of another protocol.",
)


def cub(root: Path | None = None, image_size: int = 224, boxes: bool = False) -> DataSplits:
    """CUB-200-2011: 5,864 photographs of 100 birds to train, 5,924 of 100 others to test.

    Args:
        root: the folder ``CUB_200_2011``, or the one that it lies in; ``pml-ext data cub`` has the default.
        image_size: height and width of the network's input, in pixels.
        boxes: whether each photograph is cut to its bird, as ``bounding_boxes.txt`` says.
    """
    place = place_of(ABOUT, root, "images.txt", ["CUB_200_2011"])
    names = dict(read_lines(place / "classes.txt", 2))
    classes = dict(read_lines(place / "image_class_labels.txt", 2))
    boxed = {image: numbers for image, *numbers in read_lines(place / "bounding_boxes.txt", 5)} if boxes else {}
    parts: dict[str, list[Entry]] = {"train": [], "test": []}
    for image, path in read_lines(place / "images.txt", 2):
        try:
            number, box = classes[image], None
            if boxes:
                left, top, width, height = map(float, boxed[image])
                box = Box(left, top, left + width, top + height)
            part = "train" if int(number) <= ABOUT.counts["train"].classes else "test"
            parts[part].append(Entry(path, names[number], box))
        except (KeyError, ValueError) as error:
            raise DataError(
                f"{place}: the class or the box of image {image} ({path}) is not as it should be ({one_line(error)}); "
                "unpack CUB_200_2011.tgz again"
            ) from None
    return assemble(ABOUT, place / "images.txt", place / "images", parts, image_size, list(names.values()))
