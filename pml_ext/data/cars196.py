"""Cars196: photographs of cars."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import DataError, one_line
from .published import About, Archive, Count, Entry, assemble, place_of
from .splits import DataSplits

ABOUT = About(
    name="cars196",
    title="Stanford Cars",
    page="https://ai.stanford.edu/~jkrause/cars/car_dataset.html (dead; copies are found by the names of the files)",
    license="for research; the photographs belong to their owners",
    archives=(
        Archive("car_ims.tgz", 1_960, "d5c8f0aa497503f355e17dc7886c3f14"),
        Archive("cars_annos.mat", 1, "b407c6086d669747186bd1d764ff9dbc", unpack=False),
    ),
    layout="car_ims/ with 000001.jpg and so on, and cars_annos.mat",
    counts={"train": Count(8_054, 98), "test": Count(8_131, 98)},
    note="Classes 1 to 98 train, 99 to 196 test; the division in cars_annos.mat is of another protocol.",
)


def cars196(root: Path | None = None, image_size: int = 224) -> DataSplits:
    """Cars196: 8,054 photographs of 98 cars to train, 8,131 of 98 others to test.

    Args:
        root: the folder with ``car_ims`` and ``cars_annos.mat``.
        image_size: height and width of the network's input, in pixels.
    """
    from scipy.io import loadmat

    place = place_of(ABOUT, root, "cars_annos.mat", ["cars196", "CARS196"])
    path = place / "cars_annos.mat"
    parts: dict[str, list[Entry]] = {"train": [], "test": []}
    try:
        tables: dict[str, Any] = loadmat(path, squeeze_me=True)
        names = dict(enumerate(map(str, tables["class_names"]), 1))
        rows = tables["annotations"]
        for image, number in zip(map(str, rows["relative_im_path"]), map(int, rows["class"]), strict=True):
            parts["train" if number <= ABOUT.counts["train"].classes else "test"].append(Entry(image, names[number]))
    except Exception as error:  # of many kinds, from the reader of a damaged file
        raise DataError(f"{path}: not the annotations of Cars196 ({one_line(error)}); get the file again") from None
    return assemble(ABOUT, path, place, parts, image_size, list(names.values()))
