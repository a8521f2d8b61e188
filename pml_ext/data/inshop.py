"""In-Shop Clothes Retrieval, a part of DeepFashion: queries and a gallery."""

from __future__ import annotations

from pathlib import Path

from ..errors import DataError
from .published import About, Archive, Count, Entry, assemble, place_of, read_lines
from .splits import DataSplits

LIST = "list_eval_partition.txt"
ABOUT = About(
    name="inshop",
    title="DeepFashion: In-shop Clothes Retrieval Benchmark",
    page="https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html",
    license="for non-commercial research, after agreement with its authors",
    archives=(Archive("img.zip", 480), Archive(LIST, 5, unpack=False)),
    layout=f"img/ (or Img/img/) with MEN/ and WOMEN/, and {LIST} (or Eval/{LIST})",
    counts={"train": Count(25_882, 3_997), "query": Count(14_218, 3_985), "gallery": Count(12_612, 3_985)},
)


def inshop(root: Path | None = None, image_size: int = 224) -> DataSplits:
    """In-Shop: 25,882 photographs of 3,997 clothes to train; of 3,985 others, 14,218 queries and 12,612 in the gallery.

    Args:
        root: the folder with ``list_eval_partition.txt``, or one above it; ``pml-ext data inshop`` has the default.
        image_size: height and width of the network's input, in pixels.
    """
    listed = place_of(ABOUT, root, LIST, ["Eval", "Anno", "In-shop Clothes Retrieval Benchmark/Eval"]) / LIST
    parts: dict[str, list[Entry]] = {"train": [], "query": [], "gallery": []}
    for path, item, part in read_lines(listed, 3, header=2):
        if part not in parts:
            raise DataError(f"{listed}: found {part!r} of {path}, wanted train, query or gallery; get the file again")
        parts[part].append(Entry(path, item))
    above = listed.parent.parent if listed.parent.name in ("Eval", "Anno") else listed.parent
    images = next((place for place in (listed.parent, above, above / "Img") if (place / "img").is_dir()), above)
    return assemble(ABOUT, listed, images, parts, image_size)
