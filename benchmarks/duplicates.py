"""Precision and recall of the copies that ``pml-ext query RUN --duplicates`` finds by its default radius.

``python -m benchmarks.duplicates RUN FOLDER [--photographs 10] [--by features]`` (extra ``train``) draws photographs
from a folder, writes each of them and seven changes of it, indexes the images with the run in a collection of its own,
and counts pairs of images in one group. For comparison: the recall of groups by the run's vectors as they are, and by
gray thumbnails of 16 x 16 pixels, both with the best radius for a precision of 0.99, which nobody knows beforehand.
``--among N`` adds N photographs more, of which there are no copies.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageEnhance
from torch import Tensor

from pml_ext import load_run
from pml_ext_search.near_pairs import components, shortest_pairs

ENDINGS = (".jpg", ".jpeg", ".png")
PRECISION = 0.99


def scaled(image: Image.Image, factor: float) -> Image.Image:
    """Return an image of another size."""
    return image.resize((round(image.width * factor), round(image.height * factor)), Image.Resampling.LANCZOS)


def cropped(image: Image.Image, lost: float) -> Image.Image:
    """Return an image without a fraction of its width and height, half of it at each side."""
    x = round(image.width * lost / 2)
    y = round(image.height * lost / 2)
    return image.crop((x, y, image.width - x, image.height - y))


CHANGES: dict[str, Callable[[Image.Image, str], None]] = {
    "original.png": lambda image, place: image.save(place),
    "quality-75.jpg": lambda image, place: image.save(place, quality=75),
    "quality-40.jpg": lambda image, place: image.save(place, quality=40),
    "half.jpg": lambda image, place: scaled(image, 0.5).save(place, quality=90),
    "webp.webp": lambda image, place: image.save(place, quality=80),
    "crop.jpg": lambda image, place: cropped(image, 0.03).save(place, quality=90),
    "brighter.jpg": lambda image, place: ImageEnhance.Brightness(image).enhance(1.2).save(place, quality=90),
    "doubled.jpg": lambda image, place: scaled(image, 2).save(place, quality=90),
}


def write_copies(files: Sequence[Path], copied: int, place: Path) -> None:
    """Write the first photographs with their changes, and the others as they are, one folder each."""
    for number, file in enumerate(files):
        image = Image.open(file).convert("RGB")
        folder = place / f"{number:05d}"
        folder.mkdir()
        for name, write in CHANGES.items():
            if number < copied or name == "original.png":
                write(image, str(folder / name))


def scores(groups: Sequence[Sequence[str]], paths: Sequence[str]) -> tuple[float, float]:
    """Return precision and recall of pairs of images in one group."""
    photographs = {path: path.partition("/")[0] for path in paths}
    sizes = np.unique(list(photographs.values()), return_counts=True)[1]
    wanted = int((sizes * (sizes - 1) // 2).sum())
    found = 0
    right = 0
    for group in groups:
        found += len(group) * (len(group) - 1) // 2
        of_each = np.unique([photographs[path] for path in group], return_counts=True)[1]
        right += int((of_each * (of_each - 1) // 2).sum())
    return right / max(1, found), right / wanted


def best_recall(points: Tensor, paths: Sequence[str]) -> float:
    """Return the recall of groups by vectors, at the best radius whose precision is at least 0.99."""
    points = torch.nn.functional.normalize(points)
    best = 0.0
    for radius in np.arange(0.02, 1.2, 0.02).tolist():
        pairs = shortest_pairs(points, radius)
        groups = []
        for members in components(pairs, len(points)):
            groups.append([paths[number] for number in members])
        precision, recall = scores(groups, paths)
        if groups and precision >= PRECISION:
            best = max(best, recall)
    return best


def thumbnails(folder: Path, paths: Sequence[str]) -> Tensor:
    """Return gray thumbnails of 16 x 16 pixels without their means, ``[N, 256]``."""
    rows = []
    for path in paths:
        small = Image.open(folder / path).convert("L").resize((16, 16), Image.Resampling.BOX)
        row = np.asarray(small, dtype=np.float32).ravel()
        rows.append(row - row.mean())
    return torch.from_numpy(np.stack(rows))


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--photographs", type=int, default=10)
    parser.add_argument("--among", type=int, default=0, help="photographs without copies")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--by", choices=("embeddings", "features"), default="embeddings")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    files = sorted(file for file in given.folder.rglob("*") if file.suffix.lower() in ENDINGS)
    random.Random(given.seed).shuffle(files)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "images"
        folder.mkdir()
        write_copies(files[: given.photographs + given.among], given.photographs, folder)
        run = load_run(given.run, "cpu", store=Path(temporary) / "collection", by=given.by)
        gallery = run.index(folder)
        begun = time.process_time()
        found = run.duplicates()
        seconds = time.process_time() - begun
        paths = gallery.embedded.paths
        groups = [[image.path for image in group.images] for group in found.groups]
        precision, recall = scores(groups, paths)
        mixed = sum(len({path.partition("/")[0] for path in group}) > 1 for group in groups)
        grouped = sum(len(group) for group in groups)
        print(f"{len(paths)} images, radius {found.radius:.3f}, {seconds:.0f} s of processors")
        print(f"precision {precision:.3f}, recall {recall:.3f}")
        print(f"{grouped} images in {len(groups)} groups, of which {mixed} are mixed")
        print(f"vectors as they are, with the best radius: {best_recall(gallery.embedded.embeddings, paths):.3f}")
        print(f"thumbnails, with the best radius: {best_recall(thumbnails(folder, paths), paths):.3f}")


if __name__ == "__main__":
    main()
