"""Precision and recall of ``pml-ext duplicates FOLDER`` with its default radius.

``python -m benchmarks.duplicates FOLDER [--photographs 100] [--among 900]`` draws photographs, writes each with seven
changes, and counts pairs of images in one group. ``--among N`` adds photographs without copies. ``--scenes SIDE`` cuts
large pictures into squares first. ``--turned`` writes mirrored, turned and captioned copies instead.

Compared, each at its best threshold for a precision of 0.99: gray thumbnails; with ``--run RUN`` the features of a
trunk; and the hashes of imagededup, if installed.
"""

import argparse
import importlib.util
import random
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageOps
from torch import Tensor

from pml_ext import load_run
from pml_ext.whitening import TotalWhitening
from pml_ext_copies.duplicates import find_duplicates
from pml_ext_copies.image_files import ImageFiles
from pml_ext_copies.near_pairs import Pairs, components, shortest_pairs

ENDINGS = (".jpg", ".jpeg", ".png")
PRECISION = 0.99
LEAST_CONTRAST = 12.0  # standard deviation of gray levels, below which a scene is left out
HASHES = ("PHash", "DHash", "AHash", "WHash")  # of imagededup
BITS = 10  # imagededup's default


def scaled(image: Image.Image, factor: float) -> Image.Image:
    return image.resize((round(image.width * factor), round(image.height * factor)), Image.Resampling.LANCZOS)


def cropped(image: Image.Image, lost: float) -> Image.Image:
    """An image without a fraction of its sides."""
    x = round(image.width * lost / 2)
    y = round(image.height * lost / 2)
    return image.crop((x, y, image.width - x, image.height - y))


CHANGES: dict[str, Callable[[Image.Image, str], None]] = {
    "original.png": lambda image, place: image.save(place),
    "quality-75.jpg": lambda image, place: image.save(place, quality=75),
    "quality-40.jpg": lambda image, place: image.save(place, quality=40),
    "half.jpg": lambda image, place: scaled(image, 0.5).save(place, quality=90),
    "webp.webp": lambda image, place: image.save(place, quality=80),
    "crop-3.jpg": lambda image, place: cropped(image, 0.03).save(place, quality=90),
    "crop-10.jpg": lambda image, place: cropped(image, 0.1).save(place, quality=90),
    "brighter.jpg": lambda image, place: ImageEnhance.Brightness(image).enhance(1.2).save(place, quality=90),
}


def captioned(image: Image.Image) -> Image.Image:
    """An image with a bar of text over the lower eighth."""
    shown = image.copy()
    draw = ImageDraw.Draw(shown)
    top = image.height - image.height // 8
    draw.rectangle((0, top, image.width, image.height), "black")
    draw.text((image.width // 20, top + image.height // 40), "seen this morning", "white", font_size=image.height // 12)
    return shown


TURNED: dict[str, Callable[[Image.Image, str], None]] = {
    "original.png": CHANGES["original.png"],
    "mirrored.jpg": lambda image, place: ImageOps.mirror(image).save(place),
    "turned-90.jpg": lambda image, place: image.transpose(Image.Transpose.ROTATE_270).save(place),
    "turned-180.jpg": lambda image, place: image.transpose(Image.Transpose.ROTATE_180).save(place),
    "captioned.jpg": lambda image, place: captioned(image).save(place),
}


def photographs(files: Sequence[Path], scenes: int) -> Iterator[Image.Image]:
    """Images of files, or squares of ``scenes`` pixels that are cut from them."""
    for file in files:
        image = Image.open(file).convert("RGB")
        if not scenes:
            yield image
            continue
        for top in range(0, image.height - scenes + 1, scenes):
            for left in range(0, image.width - scenes + 1, scenes):
                scene = image.crop((left, top, left + scenes, top + scenes))
                if np.asarray(scene.convert("L")).std() >= LEAST_CONTRAST:
                    yield scene


def write_copies(
    images: Sequence[Image.Image], copied: int, place: Path, changes: dict[str, Callable[[Image.Image, str], None]]
) -> None:
    """Write the first photographs with their changes, and the others unchanged."""
    for number, image in enumerate(images):
        folder = place / f"{number:05d}"
        folder.mkdir()
        for name, write in changes.items():
            if number < copied or name == "original.png":
                write(image, str(folder / name))


def scores(groups: Sequence[Sequence[str]], paths: Sequence[str]) -> tuple[float, float]:
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


def scores_of_pairs(pairs: Pairs, paths: Sequence[str]) -> tuple[float, float]:
    groups = [[paths[number] for number in members] for members in components(pairs, len(paths))]
    return scores(groups, paths)


def best_recall(points: Tensor, paths: Sequence[str]) -> float:
    """Recall at the best radius with a precision of at least 0.99."""
    points = torch.nn.functional.normalize(points)
    best = 0.0
    for radius in np.arange(0.02, 1.2, 0.02).tolist():
        precision, recall = scores_of_pairs(shortest_pairs(points, radius), paths)
        if precision >= PRECISION:
            best = max(best, recall)
    return best


def scores_of_hash(name: str, folder: Path, paths: Sequence[str]) -> dict[int, tuple[float, float]]:
    """Precision and recall by an imagededup hash, for each limit on different bits."""
    from imagededup import methods

    hasher = getattr(methods, name)(verbose=False)
    bits = []
    for path in paths:
        text = hasher.encode_image(image_file=folder / path)
        bits.append(np.unpackbits(np.frombuffer(bytes.fromhex(text), dtype=np.uint8)))
    rows = torch.from_numpy(np.stack(bits)).float()
    different = torch.cdist(rows, rows, p=1).round()
    first, second = np.triu_indices(len(paths), 1)
    distances = different.numpy()[first, second]
    found = {}
    for most in range(17):
        is_near = distances <= most
        pairs = Pairs(first[is_near], second[is_near], distances[is_near])
        found[most] = scores_of_pairs(pairs, paths)
    return found


def thumbnails(folder: Path, paths: Sequence[str]) -> Tensor:
    """Gray thumbnails of 16 x 16 pixels without their means, ``[N, 256]``."""
    rows = []
    for path in paths:
        small = Image.open(folder / path).convert("L").resize((16, 16), Image.Resampling.BOX)
        row = np.asarray(small, dtype=np.float32).ravel()
        rows.append(row - row.mean())
    return torch.from_numpy(np.stack(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--photographs", type=int, default=100)
    parser.add_argument("--among", type=int, default=0, help="photographs without copies")
    parser.add_argument("--scenes", type=int, default=0, help="side of the squares that are cut from each picture")
    parser.add_argument("--turned", action="store_true", help="mirrored, turned and captioned copies")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run", type=Path, help="a run whose features are compared as well")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    files = sorted(file for file in given.folder.rglob("*") if file.suffix.lower() in ENDINGS)
    random.Random(given.seed).shuffle(files)
    if not given.scenes:
        files = files[: given.photographs + given.among]
    images = list(photographs(files, given.scenes))
    random.Random(given.seed).shuffle(images)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "images"
        folder.mkdir()
        changes = TURNED if given.turned else CHANGES
        write_copies(images[: given.photographs + given.among], given.photographs, folder, changes)
        paths = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*.*"))
        begun = time.process_time()
        found = find_duplicates(ImageFiles(folder, paths), turned=given.turned)
        seconds = time.process_time() - begun
        groups = [[image.path for image in group.images] for group in found.groups]
        precision, recall = scores(groups, paths)
        mixed = sum(len({path.partition("/")[0] for path in group}) > 1 for group in groups)
        print(f"{len(paths)} images, radius {found.radius:.3f}, {seconds:.0f} s of processors")
        print(f"precision {precision:.4f}, recall {recall:.4f}; {mixed} of {len(groups)} groups are mixed")
        if given.turned:
            for group in groups:
                if len({path.partition("/")[0] for path in group}) > 1:
                    print(f"  mixed: {', '.join(group)}")
            together = [{path.rpartition("/")[2] for path in group} for group in groups]
            for name in TURNED:
                print(f"  {name}: {sum({'original.png', name} <= names for names in together)} found")
            return
        print(f"recall at precision {PRECISION}, with the best threshold:")
        print(f"  thumbnails: {best_recall(thumbnails(folder, paths), paths):.3f}")
        if given.run is not None:
            run = load_run(given.run, "cpu", store=Path(temporary) / "collection", by="features")
            embedded = run.index(folder).embedded
            print(f"  features: {best_recall(embedded.embeddings, embedded.paths):.3f}")
            with torch.no_grad():
                whitened = TotalWhitening(0.6).fit(embedded.embeddings)(embedded.embeddings)
            print(f"  whitened features: {best_recall(whitened, embedded.paths):.3f}")
        if importlib.util.find_spec("imagededup") is not None:
            for name in HASHES:
                by_bits = scores_of_hash(name, folder, paths)
                best = max((recall for precision, recall in by_bits.values() if precision >= PRECISION), default=0.0)
                at_default = f"precision {by_bits[BITS][0]:.3f}, recall {by_bits[BITS][1]:.3f}"
                print(f"  imagededup {name}: {best:.3f}; at {BITS} bits: {at_default}")


if __name__ == "__main__":
    main()
