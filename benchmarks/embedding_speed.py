"""How fast a folder of photographs is indexed: ``python -m benchmarks.embedding_speed``.

Prints images per second of each part and of a whole index with 0 and 2 workers, for 10,000 JPEGs (``--count``), in
turns with a plain loop. Figures are medians.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from pml_ext import load_run
from pml_ext_search.collection.collection import Collection
from pml_ext_search.trained import TrainedRun
from pml_ext_train.data import list_folder, read_image
from pml_ext_train.launch.launch import train

WIDTH = 500
HEIGHT = 375
SIDE = 64


def photographs(place: Path, count: int, width: int, height: int) -> None:
    """JPEGs of noise at several scales, in 20 classes."""
    generator = np.random.default_rng(0)
    drawn = []
    for _ in range(min(count, 100)):
        small = Image.fromarray(generator.integers(256, size=(height // 10, width // 10, 3), dtype=np.uint8))
        pixels = np.asarray(small.resize((width, height), Image.Resampling.BICUBIC)).astype(np.int16)
        pixels += generator.integers(-3, 4, size=(height, width, 1), dtype=np.int16)
        drawn.append(Image.fromarray(pixels.clip(0, 255).astype(np.uint8)))
    for number in range(count):
        file = place / f"class {number % 20:02d}" / f"{number:05d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        image = drawn[number % len(drawn)]
        image.transpose(Image.Transpose(number // len(drawn) % 7)).save(file, quality=85)


def a_run(place: Path, trunk: str, side: int) -> Path:
    photographs(place / "training", 80, 100, 75)
    train(
        "pml/contrastive/digits",
        out=place / "run",
        device="cpu",
        overrides={
            "data.name": f"folder:{place / 'training'}",
            "data.image_size": side,
            "data.augment": {},
            "model.trunk": trunk,
            "sampler": {"name": "shuffle", "batch_size": 8, "iterations": 1},
            "schedule": {"epochs": 1},
        },
    )
    return place / "run"


@torch.no_grad()
def as_before(run: TrainedRun, folder: Path) -> torch.Tensor:
    transform = run.images.computed.transform
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    batches = []
    batch = []
    for file in files:
        batch.append(transform(read_image(file, run.network.preprocessing.channels, smallest=transform.smallest)))
        if len(batch) == 256 or file == files[-1]:
            batches.append(torch.nn.functional.normalize(run.network(torch.stack(batch)).float()))
            batch = []
    return torch.cat(batches)


@torch.no_grad()
def parts(run: TrainedRun, folder: Path, place: Path, some: int = 512) -> dict[str, float]:
    transform = run.images.computed.transform
    listing = list_folder(folder)
    begun = time.perf_counter()
    paths = [folder / name for name in listing.names[:some]]
    laps = {}

    def lap(name: str) -> None:
        nonlocal begun
        laps[name] = len(paths) / (time.perf_counter() - begun)
        begun = time.perf_counter()

    images = [read_image(path, run.network.preprocessing.channels, smallest=transform.smallest) for path in paths]
    lap("decode")
    batch = torch.stack([transform(image) for image in images])
    lap("transform")
    embeddings = torch.cat([run.network(part) for part in batch.split(64)])
    lap("network")
    collection = Collection(place, folder, "0" * 16, embeddings.shape[1])
    with collection.locked(replace=False):
        names = [os.fsencode(path) for path in paths]
        collection.append(names, listing.stats[:some], embeddings.numpy())
    lap("write")
    shutil.rmtree(place)
    return laps


def measured(way) -> tuple[float, float]:
    clock = time.perf_counter()
    before = os.times()
    way()
    after = os.times()
    return time.perf_counter() - clock, sum(after[:4]) - sum(before[:4])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000, help="photographs")
    parser.add_argument("--size", default=f"{WIDTH}x{HEIGHT}", help="of a photograph, WIDTHxHEIGHT")
    parser.add_argument("--trunk", default="convnet", help="of the network")
    parser.add_argument("--side", type=int, default=SIDE, help="what the network gets, in pixels")
    parser.add_argument("--passes", type=int, default=3)
    settings = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        width, height = map(int, settings.size.split("x"))
        photographs(place / "photographs", settings.count, width, height)
        folder = place / "photographs"
        path = a_run(place, settings.trunk, settings.side)
        run = load_run(path, "cpu", store=place / "unused")
        laps = [parts(run, folder, place / "part") for _ in range(settings.passes)]
        print(
            f"{settings.count} JPEGs of {width} x {height}, {settings.trunk} at {settings.side} pixels, "
            f"{torch.get_num_threads()} threads, {os.cpu_count()} processors"
        )
        for name in laps[0]:
            print(f"  {name:<28}{statistics.median(lap[name] for lap in laps):8.0f} images per second")

        def whole(workers: int) -> None:
            load_run(path, "cpu", workers, place / "store").index(folder)
            shutil.rmtree(place / "store")

        ways = {
            "as before, embedded": lambda: as_before(run, folder),
            "index, 0 workers": lambda: whole(0),
            "index, 2 workers": lambda: whole(2),
        }
        taken = {name: [] for name in ways}
        for _ in range(settings.passes):
            for name, way in ways.items():
                taken[name].append(measured(way))
        for name, passes in taken.items():
            clock, processor = (statistics.median(column) for column in zip(*passes, strict=True))
            ratios = [first[0] / own[0] for first, own in zip(taken["as before, embedded"], passes, strict=True)]
            print(
                f"  {name:<28}{settings.count / clock:8.0f} images per second, {statistics.median(ratios):.2f} times "
                f"as fast, {1000 * processor / settings.count:.2f} ms of processors per image"
            )


if __name__ == "__main__":
    main()
