"""Images per second that a run reads: ``python -m benchmarks.image_reading``.

All ways take turns. Figures are medians in CPU seconds; with workers, the fastest pass by the clock.
"""

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader

from pml_ext_train.data import LabeledImages, build_transforms, prepare
from pml_ext_train.training.loader import WorkerDataset

NORMALIZE = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
PASSES = 9
GRAIN = 3  # noise; a file of 12 megapixels has about 4 MB then


def photographs(place: Path, count: int, width: int, height: int) -> list[Path]:
    """JPEGs of noise at several scales, about as large as photographs."""
    generator = np.random.default_rng(0)
    paths = []
    for number in range(count):
        small = Image.fromarray(generator.integers(256, size=(height // 10, width // 10, 3), dtype=np.uint8))
        pixels = np.asarray(small.resize((width, height), Image.Resampling.BICUBIC)).astype(np.int16)
        pixels += generator.integers(-GRAIN, GRAIN + 1, size=(height, width, 1), dtype=np.int16)
        paths.append(place / f"{width}-{number}.jpg")
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(paths[-1], quality=90)
    return paths


def seconds(images: LabeledImages, workers: int) -> float:
    dataset = WorkerDataset(images, workers)
    loader = DataLoader(dataset, 16, num_workers=workers, persistent_workers=workers > 0)
    if workers:
        for _ in loader:  # starts them
            pass
    clock = time.perf_counter if workers else time.process_time
    started = clock()
    for batch, _ in loader:
        dataset.finish(batch)
    return clock() - started


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for count, size in ((128, (500, 375)), (8, (4000, 3000))):
            paths = photographs(Path(folder), count, *size)
            print(f"{size[0]} x {size[1]}: {paths[0].stat().st_size / 1e6:.2f} MB per file")
            files = LabeledImages(paths, [0] * count, ["one"])
            _, plain = build_transforms(224, 3, crop=True, normalize=NORMALIZE)
            ways = {"decoded": files.with_transform(plain)}
            ways['cache = "memory"'] = prepare(files, plain, "memory")[0].with_transform(plain)
            for workers in (0, 1):
                times = {way: [] for way in ways}
                for _ in range(PASSES):
                    for way, images in ways.items():
                        times[way].append(seconds(images, workers))
                typical = min if workers else statistics.median
                rates = {way: f"{count / typical(taken):.1f}" for way, taken in times.items()}
                print(f"  {workers} workers, images per second:", rates, flush=True)


if __name__ == "__main__":
    main()
