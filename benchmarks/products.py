"""A run on a made-up set with the layout of Stanford Online Products: memory and test time.

``python -m benchmarks.products`` trains a small network on 24,000 JPEGs of 2,000 classes at 224 x 224 for an epoch, and
prints the peak resident memory. It compares the time of the tests with a bare loop that embeds each test image twice.
"""

import argparse
import dataclasses
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

RECIPE = "pml/contrastive/omniglot-small"  # with another set, network and sampler
SIZES = ((300, 224), (256, 256), (224, 320))


def jpeg(path, seed):
    """A photograph of blobs, similar within a class."""
    generator = np.random.default_rng(seed)
    width, height = SIZES[seed[1] % len(SIZES)]
    shape = np.random.default_rng(seed[0]).integers(256, size=(7, 9, 3))
    blobs = (shape + generator.integers(-60, 60, size=shape.shape)).clip(0, 255).astype(np.uint8)
    pixels = np.asarray(Image.fromarray(blobs).resize((width, height), Image.Resampling.BICUBIC)).astype(np.int16)
    pixels += generator.integers(-3, 4, size=(height, width, 1), dtype=np.int16)
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, quality=90)


def a_class(place, number, images):
    folder = place / "bicycle_final"
    for image in range(images):
        jpeg(folder / f"{number}_{image}.JPG", (number, image))


def make(place, images, classes):
    (place / "bicycle_final").mkdir(parents=True)
    each = images // classes
    with ProcessPoolExecutor(2) as pool:
        list(pool.map(a_class, [place] * 2 * classes, range(2 * classes), [each] * 2 * classes, chunksize=50))
    for part, first in (("train", 0), ("test", classes)):
        names = [f"bicycle_final/{first + at // each}_{at % each}.JPG" for at in range(images)]
        lines = [f"{at + 1} {1 + first + at // each} 1 {name}" for at, name in enumerate(names)]
        (place / f"Ebay_{part}.txt").write_text("\n".join(["image_id class_id super_class_id path", *lines]) + "\n")


class Clock:
    """Seconds by the clock and of CPU, with those of ended workers."""

    def __init__(self):
        self.total = {}

    def __call__(self, name, function):
        def timed(*arguments, **settings):
            wall = time.perf_counter()
            cpu = sum(os.times()[:4])
            try:
                return function(*arguments, **settings)
            finally:
                old = self.total.get(name, (0.0, 0.0))
                self.total[name] = old[0] + time.perf_counter() - wall, old[1] + sum(os.times()[:4]) - cpu

        return timed


def run(place, images, classes, workers, training_images):
    """Train a network and compare its test time with a bare loop."""
    import torch

    from pml_ext_train.data import image_sets
    from pml_ext_train.data.published import Count
    from pml_ext_train.launch.launch import train
    from pml_ext_train.results import finish as results
    from pml_ext_train.training import evaluation, validation

    torch.set_num_threads(1)
    counts = {"train": Count(images, classes), "test": Count(images, classes)}
    image_sets.SOP = dataclasses.replace(image_sets.SOP, counts=counts)
    clock = Clock()

    def bare(view):
        from torch.utils.data import DataLoader

        trunk = view.trunk.eval()
        embedder = view.embedder.eval()
        with torch.no_grad():
            for batch, _ in DataLoader(view.images("test"), view._test_batch(), num_workers=workers):
                embedder(trunk(batch))

    def with_loop(function):
        def both(view, *arguments):
            clock("bare", bare)(view)
            try:
                return clock("tests", function)(view, *arguments)
            finally:
                clock("bare", bare)(view)

        return both

    def of_split(view, split, clustering=True):
        name = "tests of training images" if split.startswith("train") else "metrics"
        return clock(name, measure)(view, split, clustering)

    measure = evaluation.evaluate_split
    evaluation.evaluate_split = of_split
    validation.metrics_before = with_loop(validation.metrics_before)
    results.metrics_after = clock("tests", results.metrics_after)
    results.write_run_report = clock("report", results.write_run_report)
    with tempfile.TemporaryDirectory() as folder:
        overrides = {
            "data": {"name": "sop", "image_size": 224},
            "data.workers": workers,
            "schedule": {"epochs": 1},
            "model": {"trunk": {"name": "convnet", "width": 4}, "embedding_size": 64},
            "sampler": {"name": "pml/m-per-class", "m": 4, "batch_size": 64, "iterations": 50},
            "evaluation.training_images": training_images,
        }
        metrics = train(RECIPE, out=Path(folder) / "run", device="cpu", data=place, overrides=overrides)[0]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    seconds = {name: [round(number, 1) for number in pair] for name, pair in clock.total.items()}
    print(json.dumps({"gigabytes": round(peak, 2), "wall, processor": seconds, "after": metrics["after"]}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=12_000)
    parser.add_argument("--classes", type=int, default=1_000)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--training-images", type=int, default=5_000, help="that are tested, in another pass")
    parser.add_argument("--place", type=Path, help="where the set is, or is to be; by default a temporary folder")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        run(given.place, given.images, given.classes, given.workers, given.training_images)
        return
    with tempfile.TemporaryDirectory() as folder:
        place = given.place or Path(folder) / "products"
        if not place.exists():
            make(place, given.images, given.classes)
        options = [f"--{name}={value}" for name, value in vars(given).items() if name not in ("child", "place")]
        line = [
            sys.executable,
            "-m",
            "benchmarks.products",
            "--child",
            f"--place={place}",
            *(o.replace("_", "-") for o in options),
        ]
        told = json.loads(subprocess.run(line, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    print(told)
    for number, unit in enumerate(("clock", "processor")):
        of = {name: pair[number] for name, pair in told["wall, processor"].items()}
        more = of["tests of training images"]
        print(
            f"tests in {of['tests']:.0f} s of the {unit}, {of['tests'] / of['bare']:.2f} times the bare loop's "
            f"{of['bare']:.0f} s; without the {more:.0f} s of training images "
            f"{(of['tests'] - more) / of['bare']:.2f} times"
        )


if __name__ == "__main__":
    main()
