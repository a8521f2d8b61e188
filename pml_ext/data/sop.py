"""Stanford Online Products: photographs of things that were for sale."""

from __future__ import annotations

from pathlib import Path

from .published import About, Archive, Count, Entry, assemble, place_of, read_lines
from .splits import DataSplits

ABOUT = About(
    name="sop",
    title="Stanford Online Products",
    page="https://cvgl.stanford.edu/projects/lifted_struct/",
    license="MIT for the lists; the photographs are from eBay, for research",
    archives=(Archive("Stanford_Online_Products.zip", 3_080, "7f73d41a2f44250d4779881525aea32e"),),
    layout="Stanford_Online_Products/ with Ebay_train.txt, Ebay_test.txt and bicycle_final/, cabinet_final/, ...",
    counts={"train": Count(59_551, 11_318), "test": Count(60_502, 11_316)},
)


def sop(root: Path | None = None, image_size: int = 224) -> DataSplits:
    """Stanford Online Products: 59,551 photographs of 11,318 products to train, 60,502 of 11,316 others to test.

    A class is named by the product that its photographs are of, such as ``bicycle_final/111085122871``.

    Args:
        root: the folder ``Stanford_Online_Products``, or the one that it lies in; ``pml-ext data sop`` has the default.
        image_size: height and width of the network's input, in pixels.
    """
    place = place_of(ABOUT, root, "Ebay_train.txt", ["Stanford_Online_Products"])
    parts: dict[str, list[Entry]] = {}
    names: dict[str, str] = {}  # by class id
    for part, name in (("train", "Ebay_train.txt"), ("test", "Ebay_test.txt")):
        parts[part] = []
        for _, number, _, path in read_lines(place / name, 4, header=1):
            parts[part].append(Entry(path, names.setdefault(number, path.rpartition("_")[0])))
    return assemble(ABOUT, place / "Ebay_test.txt", place, parts, image_size)
