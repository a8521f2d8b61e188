"""Known or new: the false acceptances of a calibrated threshold, requested and measured.

python -m benchmarks.known_or_new cars FEATURES.pt    features of a trunk with labels: {train, test}{, _labels}
python -m benchmarks.known_or_new omniglot FOLDER     images_background_small1.zip and 2
python -m benchmarks.known_or_new digits              scikit-learn's digits
  [--seeds 100] [--photographs 5] [--classes 5 10 20 49]

The head is whitening within the training classes; digits are unwhitened pixels. Each seed enrolls some test classes
with five images each, which also calibrate the threshold. Images of other test classes are new. Columns: the requested
rate; the mean rate found (least, most); their ratio; how often the 90 % interval holds; the spread of one threshold
that is right on average; known images with the right class.
"""

import argparse
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import Tensor, nn

from pml_ext.whitening import WithinClassWhitening
from pml_ext_search.open_set.open_set import (
    Classes,
    inflation_of,
    interval_of,
    metrics_of,
    share_of_classes,
    threshold_at,
    without_own_class,
)

RATES = (0.01, 0.05, 0.1)


@dataclass(frozen=True)
class Split:
    train: Tensor | None  # None: the test features are not whitened
    train_labels: Any
    test: Tensor
    test_labels: Any


def cars(path: Path) -> Split:
    found = torch.load(path, weights_only=True)
    return Split(
        found["train"].float(), found["train_labels"].numpy(), found["test"].float(), found["test_labels"].numpy()
    )


def omniglot(folder: Path) -> Split:
    parts = []
    for number in (1, 2):
        pixels = []
        names = []
        with zipfile.ZipFile(folder / f"images_background_small{number}.zip") as files:
            for name in sorted(files.namelist()):
                if name.endswith(".png"):
                    with Image.open(io.BytesIO(files.read(name))) as drawing:
                        small = drawing.convert("L").resize((28, 28), Image.Resampling.BILINEAR)
                    pixels.append(1 - np.asarray(small, dtype=np.float32).ravel() / 255)
                    names.append(name.rpartition("/")[0])
        parts += [torch.from_numpy(np.stack(pixels)), np.unique(names, return_inverse=True)[1]]
    return Split(*parts)


def digits() -> Split:
    """Pixels of digits without training, since there are only ten classes."""
    found = load_digits()
    pixels = torch.from_numpy(found.data.astype(np.float32) / 16)
    return Split(None, None, pixels, found.target)


def trial(embeddings: Tensor, labels: Any, nearest: Any, seed: int, photographs: int, count: int) -> dict[str, Any]:
    """The gallery of a seed: the rates of false acceptances and of correctly named images."""
    generator = np.random.default_rng(seed)
    enrolled = generator.permutation(np.unique(labels))[:count]
    rows = []
    for name in enrolled:
        rows.append(generator.permutation(np.flatnonzero(labels == name))[:photographs])
    gallery = np.concatenate(rows)
    numbers = np.repeat(np.arange(len(enrolled)), [len(each) for each in rows])
    classes = Classes(embeddings[gallery], numbers, len(enrolled), nearest)

    left_out = without_own_class(classes.distances(embeddings[gallery]), numbers)
    queries = np.setdiff1d(np.arange(len(labels)), gallery)
    distances = classes.distances(embeddings[queries])
    number_of_name = {name: number for number, name in enumerate(enrolled.tolist())}
    truth = [number_of_name.get(name) for name in labels[queries].tolist()]
    texts = [str(name) for name in labels[queries]]
    found: dict[str, Any] = {"new": distances.min(axis=1)[[number is None for number in truth]]}
    inflation = inflation_of(count)
    for rate in RATES:
        threshold = threshold_at(rate / inflation, left_out, numbers)
        if threshold is None:
            continue
        metrics = metrics_of(distances, truth, threshold, texts)
        share = share_of_classes(left_out <= threshold, numbers)
        low, high = (inflation * bound for bound in interval_of(share, count))
        found[f"far {rate:g}"] = metrics["false_acceptance_rate"]
        found[f"inside {rate:g}"] = low <= metrics["false_acceptance_rate"] <= high
        found[f"right {rate:g}"] = metrics["detection_and_identification_rate"]
    return found | {"recall": metrics_of(distances, truth, 2.0, texts)["recall_at_1"]}


def table(embeddings: Tensor, labels: Any, seeds: int, photographs: int, counts: list[int]) -> None:
    print("| nearest | classes | Recall@1 | asked | found | of asked | in interval | best constant | known, right |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for nearest in ("center", "image"):
        for count in counts:
            found = [trial(embeddings, labels, nearest, seed, photographs, count) for seed in range(seeds)]
            recall = np.mean([each["recall"] for each in found])
            for rate in RATES:
                row = [nearest, str(count), f"{recall:.1%}", f"{rate:.0%}"]
                if f"far {rate:g}" not in found[0]:
                    print(f"| {' | '.join(row)} | refused | | | | |")
                    continue
                rates = np.array([each[f"far {rate:g}"] for each in found])
                constant = np.quantile(np.concatenate([each["new"] for each in found]), rate)
                spread = [float((each["new"] <= constant).mean()) for each in found]
                row.append(f"{rates.mean():.2%} ({rates.min():.1%}, {rates.max():.1%})")
                row += [f"{rates.mean() / rate:.2f}", f"{np.mean([each[f'inside {rate:g}'] for each in found]):.0%}"]
                row.append(f"{min(spread):.1%}, {max(spread):.1%}")
                row.append(f"{np.mean([each[f'right {rate:g}'] for each in found]):.1%}")
                print(f"| {' | '.join(row)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=["cars", "omniglot", "digits"])
    parser.add_argument("path", type=Path, nargs="?")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--photographs", type=int, default=5)
    parser.add_argument("--classes", type=int, nargs="+", default=[5, 10, 20, 49], help="how many are enrolled")
    options = parser.parse_args()
    if options.data == "digits":
        split = digits()
    elif options.path is None:
        parser.error(f"{options.data} needs a path")
    else:
        split = {"cars": cars, "omniglot": omniglot}[options.data](options.path)
    head: nn.Module = nn.Identity()
    if split.train is not None:
        head = WithinClassWhitening().fit(split.train, split.train_labels)
    with torch.no_grad():
        embeddings = nn.functional.normalize(head(split.test))
    classes = len(np.unique(split.test_labels))
    counts = [count for count in options.classes if count < classes]
    print(f"{options.data}: {classes} unseen classes, {options.photographs} images of each enrolled one")
    table(embeddings, split.test_labels, options.seeds, options.photographs, counts)


if __name__ == "__main__":
    main()
