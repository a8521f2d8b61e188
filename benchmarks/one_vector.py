"""One image, one vector: ``python -m benchmarks.one_vector``, minutes on a CPU.

A path is decoded at a reduced size, a Pillow image in full. For each decoding size, in pixels per resized pixel, it
prints the largest and the median distance of the two vectors by EfficientNet-Lite0 (extra ``photos``), and the CPU
seconds of reading.
"""

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from pml_ext_train.data import Pipeline, Steps, build_transforms, read_image
from pml_ext_train.networks.trunks import builtin_trunk

SIZES = ((515, 640), (900, 701), (1025, 1030), (1600, 1200), (2049, 2055), (2048, 1536), (4000, 2668), (6001, 4003))
NETWORKS = ((160, 160), (224, 256))  # pixels of the input, and of the shorter side before the crop
KEPT = (1, 2, 3, 4, 6)
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def drawings(size: tuple[int, int], generator: np.random.Generator) -> Iterator[Image.Image]:
    """Images of a size: noise at all scales behind edges, disks and stripes."""
    octaves = np.zeros((size[1], size[0], 3), dtype=np.float32)
    scale = 2
    while scale < min(size):
        coarse = generator.normal(size=(size[1] // scale + 1, size[0] // scale + 1, 3)).astype(np.float32)
        for channel in range(3):
            layer = Image.fromarray(coarse[..., channel]).resize(size, Image.Resampling.BICUBIC)
            octaves[..., channel] += np.asarray(layer) * scale**0.7
        scale *= 2
    octaves = 128 + 50 * octaves / octaves.std()
    smooth = octaves.clip(0, 255).astype(np.uint8)
    yield Image.fromarray(smooth)

    rows, columns = np.mgrid[: size[1], : size[0]]
    pixels = smooth.copy()
    for number in range(40):
        radius = min(size) * generator.uniform(0.01, 0.2)
        away = np.hypot(rows - generator.integers(size[1]), columns - generator.integers(size[0]))
        inside = away < radius
        if number % 2:
            inside &= (away // generator.uniform(2, 20)) % 2 == 0  # rings
        pixels[inside] = generator.integers(256, size=3)
    yield Image.fromarray(pixels)


def write_images(place: Path) -> list[Path]:
    generator = np.random.default_rng(0)
    files = []
    for size in SIZES:
        for number, image in enumerate(drawings(size, generator)):
            for quality, subsampling in ((75, 2), (95, 0)):
                files.append(place / f"{size[0]}x{size[1]}-{number}-{quality}.jpg")
                image.save(files[-1], quality=quality, subsampling=subsampling)
    return files


@torch.no_grad()
def vector(trunk: nn.Module, image: Tensor) -> Tensor:
    return nn.functional.normalize(trunk(image[None]).double())[0]


def measure(files: list[Path], trunk: nn.Module, size: int, side: int) -> None:
    steps: Steps
    _, steps = build_transforms(size, 3, crop=True, normalize=HALF, pipeline=Pipeline(resize=side))
    distances: dict[int, list[float]] = {kept: [] for kept in KEPT}
    seconds = dict.fromkeys([*KEPT, 0], 0.0)
    for file in files:
        vectors = {}
        for kept in seconds:
            start = time.process_time()
            image = steps(read_image(file, smallest=kept * side or None))
            seconds[kept] += time.process_time() - start
            vectors[kept] = vector(trunk, image)
        for kept in KEPT:
            distances[kept].append(float((vectors[kept] - vectors[0]).norm()))
    for kept, values in distances.items():
        print(
            f"{size} pixels of {side}, {kept} kept: distance up to {max(values):.4f}, median "
            f"{statistics.median(values):.4f}; cosine distance up to {max(values) ** 2 / 2:.6f}; "
            f"{seconds[kept] / seconds[0]:.2f} of the time of all pixels, {seconds[kept] / seconds[1]:.2f} of 1 kept"
        )


def main() -> None:
    torch.set_num_threads(1)
    factory = builtin_trunk("efficientnet-lite0")
    assert factory is not None
    trunk = factory(in_channels=3, image_size=224, weights="imagenet").eval()
    with tempfile.TemporaryDirectory() as place:
        files = write_images(Path(place))
        for size, side in NETWORKS:
            measure(files, trunk, size, side)


if __name__ == "__main__":
    main()
