"""MAP@R of the first dimensions of embeddings: with and without :class:`pml_ext.NestedLoss`, and in closed form.

``python -m benchmarks.nested_sizes FOLDER [--seeds 5] [--epochs 8] [--size 256] [--recipe NAME] [--out
runs/nested]``: FOLDER has Omniglot's two small background sets. Runs that are finished are not trained
again. Means and standard deviations over seeds, and the mean difference of pairs with the same seed. The closed form
whitens pixels within classes; its first 64 dimensions are compared with its last.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from numpy import array
from torch import nn

from pml_ext import WithinClassWhitening, load_run, train
from pml_ext.evaluation import RetrievalAccuracyCalculator
from pml_ext_train.recipe import build_dataset, load_recipe

METRIC = "mean_average_precision_at_r"


def main() -> None:
    """Print a row for each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--recipe", default="pml/multi-similarity/omniglot-small")
    parser.add_argument("--out", type=Path, default=Path("runs/nested"))
    options = parser.parse_args()
    sizes = [64]
    while sizes[-1] < options.size:
        sizes.append(2 * sizes[-1])
    _print_closed_form(options)
    plain = []
    nested = []
    for seed in range(options.seeds):
        plain.append(_scores(options, seed, sizes, []))
        nested.append(_scores(options, seed, sizes, sizes))
        print(f"seed {seed}: without {plain[-1]}, nested {nested[-1]}", flush=True)
    for size, one, other in zip(sizes, array(plain).T, array(nested).T, strict=True):
        print(
            f"first {size}: {one.mean():.1f} ± {one.std(ddof=1):.1f} without, "
            f"{other.mean():.1f} ± {other.std(ddof=1):.1f} nested, difference {(other - one).mean():+.1f} ± "
            f"{(other - one).std(ddof=1):.1f}"
        )


def _scores(options: argparse.Namespace, seed: int, sizes: list[int], nested: list[int]) -> list[float]:
    """MAP@R of the test images in percent, for each size."""
    place = options.out / f"{'nested' if nested else 'plain'}-{seed}"
    if not (place / "metrics.json").exists():
        changes = {
            "model.embedding_size": options.size,
            "loss.nested": nested,
            "schedule.epochs": options.epochs,
            "schedule.milestones": [3 * options.epochs // 4],
            "evaluation.baselines": False,
            "evaluation.figures": "few",
            "evaluation.training_images": 0,
        }
        train(options.recipe, place, seed, device="cpu", data=options.folder, overrides=changes, resume=place.exists())
    run = load_run(place, "cpu")
    test = build_dataset(run.recipe.data, options.folder).test
    assert test is not None
    embeddings = run.embed(test.images)
    return [_map_at_r(embeddings[:, :size], test.labels) for size in sizes]


def _print_closed_form(options: argparse.Namespace) -> None:
    splits = build_dataset(load_recipe(options.recipe).data, options.folder)
    assert splits.test is not None
    train_pixels, test_pixels = (part.images.flatten(1).float() for part in (splits.train, splits.test))
    with torch.no_grad():
        embeddings = WithinClassWhitening(size=options.size).fit(train_pixels, splits.train.labels)(test_pixels)
    for name, part in (("all", embeddings), ("first 64", embeddings[:, :64]), ("last 64", embeddings[:, -64:])):
        print(f"closed form, {name}: {_map_at_r(part, splits.test.labels)}", flush=True)


def _map_at_r(embeddings: torch.Tensor, labels: Any) -> float:
    calculator = RetrievalAccuracyCalculator((METRIC,), device=torch.device("cpu"))
    found = calculator.evaluate(nn.functional.normalize(embeddings), labels)
    return round(100 * float(found.accuracies[METRIC]), 2)


if __name__ == "__main__":
    main()
