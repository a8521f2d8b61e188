"""Made-up copies of a sample of photographs: the metric by which copies are near, and the radius that holds them."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from PIL import Image, ImageEnhance
from torch import Tensor, nn

from pml_ext.tool import DataError, WithinClassWhitening, read_image, sample_indices

SAMPLE = 32  # photographs of which copies are made
HELD = 0.9  # fraction of made-up copies within the radius of their photograph
FARTHEST = 0.5  # the radius over the median distance of two photographs, at most
SHRINKAGE = 0.6  # of the covariance
_SIDE = 512  # the shorter side at which a large JPEG is decoded, of which copies are made
_BLOCK = 1 << 13  # vectors that are whitened at a time

Embed = Callable[[list[Image.Image]], Tensor]
"""A function from PIL images to embeddings ``[N, D]``."""


def _saved(image: Image.Image, kind: str, quality: int) -> Image.Image:
    """Return an image as it is after being saved as JPEG or WebP."""
    file = io.BytesIO()
    image.save(file, kind, quality=quality)
    copy = Image.open(file)
    copy.load()
    return copy


def _scaled(image: Image.Image, factor: float) -> Image.Image:
    width = max(1, round(image.width * factor))
    height = max(1, round(image.height * factor))
    return image.resize((width, height), Image.Resampling.LANCZOS)


def _cropped(image: Image.Image, lost: float, left: float, top: float) -> Image.Image:
    """Return an image without a fraction of each side; ``left`` and ``top`` are the parts of it lost there."""
    width = max(1, round(image.width * (1 - lost)))
    height = max(1, round(image.height * (1 - lost)))
    x = round((image.width - width) * left)
    y = round((image.height - height) * top)
    return image.crop((x, y, x + width, y + height))


CHANGES: tuple[Callable[[Image.Image], Image.Image], ...] = (
    lambda image: _saved(image, "JPEG", 50),
    lambda image: _saved(image, "JPEG", 30),
    lambda image: _saved(_scaled(image, 0.6), "JPEG", 85),
    lambda image: _saved(image, "WEBP", 60),
    lambda image: _cropped(image, 0.05, 0.3, 0.8),
    lambda image: _cropped(image, 0.12, 0.6, 0.4),
    lambda image: ImageEnhance.Brightness(image).enhance(1.25),
    lambda image: ImageEnhance.Brightness(image).enhance(0.8),
)
"""What people do to photographs: compress, scale, crop, brighten and darken them."""


@dataclasses.dataclass(frozen=True)
class CopyMetric:
    """A linear layer after which copies are near, and the distance within which they are."""

    layer: nn.Linear
    radius: float
    photographs: int  # of which copies were made
    copies: int

    @torch.no_grad()
    def points(self, embeddings: Tensor) -> Tensor:
        """Return whitened embeddings of length 1, ``[N, D]`` on the CPU."""
        points = torch.empty(len(embeddings), self.layer.out_features)
        for start in range(0, len(embeddings), _BLOCK):
            rows = slice(start, start + _BLOCK)
            points[rows] = nn.functional.normalize(self.layer(embeddings[rows].cpu().float()))
        return points


def fit_metric(files: Sequence[Path], embed: Embed) -> CopyMetric | None:
    """Return the metric of copies in a collection, from made-up copies of a sample of its photographs.

    Embeddings are whitened by their covariance within a photograph and its copies: what compression, scaling, cropping
    and brightness change counts less, and what tells photographs apart counts more. The radius holds 90 % of the
    copies, each measured by a metric that was fitted without its photograph. It is at most half of the median distance
    of two photographs, which bounds it where the network tells copies from other images badly.

    *Cost:* 288 images through the network, and three whitenings, whatever the size of the collection.

    Args:
        files: of the collection; at most 32 are drawn, and unreadable ones left out.
        embed: returns embeddings of PIL images.

    Returns:
        None if fewer than two photographs can be read, or if all copies have one vector.
    """
    families = []
    for number in sample_indices(len(files), SAMPLE, seed=0).tolist():
        try:
            pixels = read_image(files[number], 3, smallest=_SIDE)
        except DataError:
            continue  # a collection outlives its files; copies are made of those that are there
        photograph = Image.fromarray(pixels.permute(1, 2, 0).numpy())
        images = [photograph]
        for change in CHANGES:
            images.append(change(photograph))
        families.append(embed(images).cpu().float())
    if len(families) < 2:
        return None
    embeddings = torch.stack(families)
    halves = (embeddings[0::2], embeddings[1::2])
    to_copies = []
    to_others = []
    try:
        layer = _whitening(embeddings)
        for fitted, held_out in (halves, halves[::-1]):
            layer_of_half = _whitening(fitted)
            points = _whitened(layer_of_half, held_out)
            to_copies.append((points[:, 1:] - points[:, :1]).norm(dim=2).flatten())
            to_others.append(nn.functional.pdist(_whitened(layer_of_half, embeddings[:, 0])))
    except ValueError:  # nothing differs
        return None
    radius = torch.cat(to_copies).quantile(HELD).item()
    most = FARTHEST * torch.cat(to_others).median().item()
    return CopyMetric(layer, min(radius, most), len(families), len(families) * len(CHANGES))


def _whitening(families: Tensor) -> nn.Linear:
    """Return the whitening within families of a photograph and its copies, ``[P, 1 + C, D]``."""
    photographs, images, _ = families.shape
    labels = torch.arange(photographs).repeat_interleave(images)
    return WithinClassWhitening(SHRINKAGE).fit(families.flatten(0, 1), labels)


@torch.no_grad()
def _whitened(layer: nn.Linear, embeddings: Tensor) -> Tensor:
    return nn.functional.normalize(layer(embeddings), dim=-1)
