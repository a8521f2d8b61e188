"""What whitening without labels gains and loses in retrieval: Recall@1 and P@5.

``python -m benchmarks.unlabeled_whitening [FOLDER | FILE.npz ...] [--seeds N] [--mixtures N]`` (extra ``photos``)
prints a row for each set: made-up and scikit-learn's, folders with a sub-folder per class, files of ``embeddings`` and
``labels``, and N random mixtures. Large sets are also tested on random parts. The columns are the unwhitened features,
the share of parts that ``fit`` whitens, and the gains by its rule, by always whitening, and by constant shrinkages. A
star marks a loss of more than 0.5 points.
"""

import argparse
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import Tensor

from pml_ext.evaluation import RetrievalAccuracyCalculator
from pml_ext.whitening import TotalWhitening
from pml_ext_fit.one_pass import _cache_of
from pml_ext_fit.unlabeled import WHITENED_FROM
from pml_ext_fit.unlabeled_whitening import shrinkage_without_labels, whitening_helps
from pml_ext_train.recipe import build_dataset, load_recipe, preprocessing_of

from .closed_form_rules import from_scikit_learn, made_up

CONSTANTS = (0.6, 0.9, 0.95)
TOLERATED = 0.5  # points
PARTS = (500, 1000)  # items of random parts


def mixture() -> tuple[Tensor, Any]:
    """Eight classes far apart, with unequal variances of the directions."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(640) % 8
    spread = torch.randn(512, 512, generator=generator) * torch.logspace(0, -2, 512)
    means = torch.randn(8, 512, generator=generator) @ spread.T
    return means[labels] + 1.5 * torch.randn(640, 512, generator=generator) @ spread.T, labels.numpy()


def squares(folder: Path) -> None:
    """Write squares of scikit-learn's photographs; each ninth of a photograph is a class."""
    for number, pixels in enumerate(load_sample_images().images):
        for place in range(540):
            row, column = divmod(place, 30)
            square = pixels[23 * row : 23 * row + 23, 21 * column : 21 * column + 21]
            name = folder / f"{number}-{row // 6}-{column // 10}" / f"{place}.png"
            name.parent.mkdir(exist_ok=True)
            Image.fromarray(square).save(name)


def features_of(folder: Path) -> tuple[Tensor, Any]:
    """Features as ``fit`` computes them without labels, and labels by sub-folder."""
    recipe = load_recipe("fit/unlabeled", {"data.path": str(folder)})
    splits = build_dataset(recipe.data, None)
    preprocessing, _ = preprocessing_of(recipe, splits)
    cache, steps = _cache_of(recipe, preprocessing, torch.device("cpu"))
    assert splits.train.paths is not None
    names = [path.parent.name for path in splits.train.paths]
    return cache.of(splits.train.with_transform(steps))[:].float(), np.unique(names, return_inverse=True)[1]


def scores(embeddings: Tensor, labels: Tensor) -> Any:
    """Recall@1 and P@5 in percent, each item against all others."""
    names = ["precision_at_1", "precision_at_5"]
    calculator = RetrievalAccuracyCalculator(names, k=5, precision_at=(1, 5), device=torch.device("cpu"))
    found = calculator.evaluate(torch.nn.functional.normalize(embeddings), labels).accuracies
    return np.array([100 * float(found[name]) for name in names])


def mixtures(count: int) -> Iterator[tuple[str, Tensor, Any]]:
    """Random mixtures; classes, distances, dimensions and nuisance directions vary."""
    generator = np.random.default_rng(300)
    for _ in range(count):
        classes = int(generator.choice([3, 5, 8, 12, 20, 30, 50]))
        size = int(generator.choice([32, 64, 256, 512, 1280]))
        items = int(generator.choice([500, 640, 1000, 2000]))
        distance = float(generator.choice([0.3, 0.7, 1, 1.5, 3]))
        decay = int(generator.choice([0, 1, 2, 3]))  # decades from the first to the last direction
        nuisance = float(generator.choice([0, 0, 2, 5]))
        offset = float(generator.choice([0, 0, 1]))
        turned = generator.random() < 0.5
        scales = np.logspace(0, -decay, size)
        spread = generator.standard_normal((size, size)) * scales / np.sqrt(size) if turned else np.diag(scales)
        labels = np.arange(items) % classes
        within = generator.standard_normal((items, size)) @ spread
        rows = distance * (generator.standard_normal((classes, size)) @ spread)[labels] + within
        directions = np.linalg.qr(generator.standard_normal((size, 8)))[0]
        rows += nuisance * within.std() * generator.standard_normal((items, 8)) @ directions.T
        rows += offset * rows.std() * generator.standard_normal(size)
        name = f"mixture of {classes}, {size} dimensions, distance {distance}, {decay} decades, nuisance {nuisance}"
        yield name, torch.from_numpy(rows).float(), labels


def show(name: str, features: Tensor, labels: Any, size: int | None, seeds: int) -> None:
    """Print the row of a set, averaged over random parts of a size."""
    rows = []
    whitens = []
    for seed in range(seeds if size else 1):
        chosen = np.random.default_rng(seed).permutation(len(labels))[:size]
        part, of_part = features[chosen], torch.as_tensor(labels[chosen])
        shrinkage = shrinkage_without_labels(*part.shape)
        plain = scores(part, of_part)
        tried = []
        for each in (shrinkage, *CONSTANTS):
            tried.append(scores(TotalWhitening(each).fit(part)(part).detach(), of_part) - plain)
        whitens.append(whitening_helps(part, shrinkage))
        delivered = tried[0] if whitens[-1] else np.zeros(2)
        rows.append([plain, delivered, *tried])
    plain, *gains = np.mean(rows, axis=0)
    cells = [f"{recall:+.1f} / {precision:+.1f}" for recall, precision in gains]
    star = "*" if gains[0].min() < -TOLERATED else ""
    count = size or len(labels)
    share = f"{np.mean(whitens):.0%}"
    print(f"| {name}{star} | {count} | {plain[0]:.1f} / {plain[1]:.1f} | {share} | {' | '.join(cells)} |", flush=True)


def sets_of(places: Iterable[Path]) -> Iterator[tuple[str, Tensor, Any]]:
    yield ("made-up, 8 classes far apart", *mixture())
    for each in (next(from_scikit_learn()), *made_up()):
        if not each.shared and len(each.labels) >= WHITENED_FROM:
            yield each.name.removesuffix(", new classes"), each.features, each.labels
    for path in places:
        if path.is_dir():
            yield (path.name, *features_of(path))
            continue
        with np.load(path, allow_pickle=False) as file:
            labels = np.unique(file["labels"], return_inverse=True)[1]
            yield path.stem, torch.from_numpy(file["embeddings"]).float(), labels
    with tempfile.TemporaryDirectory() as place:
        squares(Path(place))
        yield ("squares of photographs", *features_of(Path(place)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("places", type=Path, nargs="*", help="folders of classes, files with embeddings and labels")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--mixtures", type=int, default=0)
    given = parser.parse_args()
    print(f"| set | items | unwhitened | whitened | fit | always | {' | '.join(map(str, CONSTANTS))} |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, features, labels in mixtures(given.mixtures):
        show(name, features, labels, None, 1)
    for name, features, of_set in sets_of(given.places):
        for size in (*(size for size in PARTS if size < len(of_set)), None):
            show(name, features, of_set, size, given.seeds)


if __name__ == "__main__":
    main()
