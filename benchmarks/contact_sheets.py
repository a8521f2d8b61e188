"""Measure pictures and clusters: ``python -m benchmarks.contact_sheets``.

Twelve JPEGs of 12 megapixels on a contact sheet, from thumbnails and from all their pixels, and the clusters of made-up
embeddings of size 64 (``--images``, ``--clusters``), by the rule of ``pml-ext cluster``. Seconds of the processor.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from pml_ext.data.thumbnail import thumbnail
from pml_ext_search.clusters import contact_sheet, group
from pml_ext_search.embedded import Embedded


def seconds(what: str, call: Callable[[], object]) -> None:
    """Print the seconds of a call."""
    begun = time.process_time()
    call()
    print(f"{what}: {time.process_time() - begun:.2f} s")


def whole(path: Path) -> Image.Image:
    """Read all pixels."""
    with Image.open(path) as image:
        return image.convert("RGB")


def main() -> None:
    """Print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--clusters", type=int, default=1_000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        coarse = np.random.default_rng(0).integers(0, 256, (12, 75, 100, 3), dtype=np.uint8)
        paths = [Path(folder) / f"{number}.jpg" for number in range(12)]
        for path, pixels in zip(paths, coarse, strict=True):
            Image.fromarray(pixels).resize((4000, 3000), Image.Resampling.BICUBIC).save(path, quality=90)
        thumbnail(paths[0])  # imports
        seconds("a sheet of 12 from thumbnails", lambda: contact_sheet("12", [thumbnail(path) for path in paths]))
        seconds("a sheet of 12 from all pixels", lambda: contact_sheet("12", [whole(path) for path in paths]))
    points = torch.nn.functional.normalize(torch.randn(asked.images, 64, generator=torch.Generator().manual_seed(0)))
    made_up = Embedded(Path("made-up"), [f"{number}.jpg" for number in range(asked.images)], points, {})
    seconds(f"{asked.clusters:,} clusters of {asked.images:,} x 64", lambda: group(made_up, asked.clusters))


if __name__ == "__main__":
    main()
