"""Iterations of a head on 20,000 cached features: ``python -m benchmarks.frozen_trunks``.

Times steps of ``cbml/frozen`` in turns with a bare loop over the features, and passes of a ViT-S/16 at 224 pixels with
the same batch.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import timm
import torch
from PIL import Image

from pml_ext import CBMLLoss
from pml_ext_train.launch.profile import profile_recipe

IMAGES = 20_000
CLASSES = 400
BATCH = {"sampler.batch_size": 64, "sampler.iterations": 400}
TRUNK = {"name": "mlp", "hidden_sizes": [384], "weights": "random"}
HEAD = {"model.freeze": "trunk", "model.trunk": TRUNK, "model.embedding_size": 128}
SMALL = {
    "data.image_size": 8,
    "data.images": {},
    "data.images.resize": 8,
    "data.images.crop": 8,
    "data.split": "image",
}


def photographs(folder: Path) -> None:
    """Write images of noise around that of their class."""
    generator = np.random.default_rng(0)
    for label, mean in enumerate(generator.integers(0, 200, (CLASSES, 8, 8))):
        (folder / str(label)).mkdir(parents=True)
        for number in range(IMAGES // CLASSES):
            pixels = (mean + generator.integers(0, 56, (8, 8))).astype(np.uint8)
            Image.fromarray(pixels).save(folder / str(label) / f"{number}.png")


def vit_seconds(batch_size: int) -> float:
    """Median seconds of a training step of a ViT-S/16 at 224 pixels, without the optimizer."""
    network = timm.create_model("vit_small_patch16_224", num_classes=128)
    loss = CBMLLoss()
    images = torch.randn(batch_size, 3, 224, 224)
    labels = torch.arange(batch_size) // 4
    taken = []
    for _ in range(3):
        begun = time.perf_counter()
        loss(network(images), labels).backward()
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--threads", type=int, default=1)
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as place:
        os.environ["XDG_CACHE_HOME"] = str(Path(place) / "cache")
        photographs(Path(place) / "photographs")
        overrides = {"data.name": f"folder:{place}/photographs", **SMALL, **HEAD, **BATCH}
        found = profile_recipe("cbml/frozen", overrides=overrides, device="cpu", threads=given.threads, steps=300)
    torch.set_num_threads(given.threads)
    vit = 1e3 * vit_seconds(64)
    print(f"a step on cached features {found.step:.2f} ms, the bare loop {found.bare:.2f} ms, ratio {found.ratio:.2f}")
    print(f"a ViT-S at 224 pixels {vit:.0f} ms, {vit / found.step:.0f} times as long")


if __name__ == "__main__":
    main()
