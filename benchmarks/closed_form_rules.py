"""How far the closed form chosen by ``fit`` falls below the better of two baselines.

``python -m benchmarks.closed_form_rules [--vectors FILE.npz ...] [--seeds N]`` splits each data set in halves several
times. Each rule chooses among the three closed forms on one half; the other half tests the choice. The baselines are
the features and within-class whitening. The table shows how often Recall@1 or MAP@R is more than 0.5 points lower, and
the mean and largest gaps.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn import datasets
from torch import Tensor

from pml_ext.evaluation import RetrievalAccuracyCalculator
from pml_ext_fit.closed_forms import CLOSED_FORMS, coordinates
from pml_ext_fit.folds import folds_of
from pml_ext_fit.scores import Scored, best_of, scores_of

TOLERATED = 0.5  # points of Recall@1 and of MAP@R
BASELINES = (0, 2)  # of the closed forms: raw features, and whitened within classes
Choose = Callable[[Sequence[Scored]], Scored]


@dataclass(frozen=True)
class Vectors:
    """Vectors ``[N, F]`` with labels ``[N]``; ``shared`` if the tested classes train."""

    name: str
    features: Tensor
    labels: NDArray[np.int64]
    shared: bool = False


def _simplest(scored: Sequence[Scored], errors: float, order: Sequence[int]) -> Scored:
    """The first one within so many standard errors of the greatest mean."""
    best = max(scored, key=lambda each: float(each.scores.both.mean()))
    for number in order:
        difference = best.scores.both - scored[number].scores.both
        if float(difference.mean()) <= errors * float(difference.std()) / len(difference) ** 0.5:
            return scored[number]
    return best


def _least_behind(scored: Sequence[Scored]) -> Scored:
    """The one with the smallest gap to the best in the worse of its two metrics."""
    recalls = [float(each.scores.recall_at_1.mean()) for each in scored]
    precisions = [float(each.scores.map_at_r.mean()) for each in scored]
    behind = []
    for recall, precision in zip(recalls, precisions, strict=True):
        behind.append(max(max(recalls) - recall, max(precisions) - precision))
    return scored[int(np.argmin(behind))]


FITS = "fit's, the greatest mean of both metrics"
RULES: dict[str, Choose] = {
    FITS: best_of,
    "the simplest within one standard error": lambda scored: _simplest(scored, 1, (0, 1, 2)),
    "within classes, if within one standard error": lambda scored: _simplest(scored, 1, (2, 0, 1)),
    "the least behind in the worse metric": _least_behind,
    "always raw features": lambda scored: scored[0],
    "always whitened within classes": lambda scored: scored[2],
}


def from_scikit_learn() -> Iterator[Vectors]:
    """scikit-learn's data sets; columns with different units are standardized."""
    digits = datasets.load_digits(return_X_y=True)
    yield Vectors("digits, new classes", _tensor(digits[0]), digits[1])
    yield Vectors("digits, the same classes", _tensor(digits[0]), digits[1], shared=True)
    for name, load in (
        ("wine", datasets.load_wine),
        ("breast cancer", datasets.load_breast_cancer),
        ("iris", datasets.load_iris),
    ):
        rows, labels = load(return_X_y=True)
        spread = (rows - rows.mean(0)) / rows.std(0)
        yield Vectors(f"{name}, the same classes", _tensor(spread), labels, shared=True)


def made_up() -> Iterator[Vectors]:
    """Gaussian classes: round ones, ones with nuisance directions, and small ones."""
    for name, classes, each, dimensions, nuisance in (
        ("made-up, round classes", 40, 20, 32, 0.0),
        ("made-up, spread in 8 of 64 directions", 40, 20, 64, 4.0),
        ("made-up, 12 classes of 10 in 256 dimensions", 12, 10, 256, 2.0),
        ("made-up, 60 classes of 3", 60, 3, 64, 2.0),
    ):
        generator = np.random.default_rng(0)
        labels = np.repeat(np.arange(classes), each)
        means = generator.standard_normal((classes, dimensions))
        rows = means[labels] + 1.5 * generator.standard_normal((len(labels), dimensions))
        rows[:, :8] += nuisance * generator.standard_normal((len(labels), 8))
        yield Vectors(name, _tensor(rows), labels)
        if classes == 40:
            yield Vectors(f"{name}, the same classes", _tensor(rows), labels, shared=True)


def from_file(path: Path, seed: int) -> Iterator[Vectors]:
    """Random classes of a file: 6 or more to train and as many to test, small ones, and two."""
    with np.load(path, allow_pickle=False) as file:
        features = torch.from_numpy(file["embeddings"]).float()
        _, labels = np.unique(file["labels"], return_inverse=True)
    generator = np.random.default_rng(seed)
    order = generator.permutation(labels.max() + 1)
    for count in (6, 12, 24, 49, 98):
        if 2 * count <= len(order):
            rows = np.flatnonzero(np.isin(labels, order[: 2 * count]))
            yield Vectors(f"{path.stem}, {count} + {count} classes", features[rows], labels[rows])
    small: list[int] = []
    for label in order[:60]:
        small += generator.permutation(np.flatnonzero(labels == label))[:3].tolist()
    yield Vectors(f"{path.stem}, 30 + 30 classes of 3", features[small], labels[small])
    rows = np.flatnonzero(np.isin(labels, order[:2]))
    yield Vectors(f"{path.stem}, 2 classes, tested on others of them", features[rows], labels[rows], shared=True)


def _tensor(rows: Any) -> Tensor:
    return torch.from_numpy(np.asarray(rows)).float()


def divided(vectors: Vectors, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows to train and to test: half of the classes, or half of each class."""
    generator = np.random.default_rng(seed)
    labels = vectors.labels
    if not vectors.shared:
        classes = generator.permutation(np.unique(labels))
        trains = np.isin(labels, classes[: len(classes) // 2])
        return np.flatnonzero(trains), np.flatnonzero(~trains)
    trains = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        trains[members[: len(members) // 2]] = True
    return np.flatnonzero(trains), np.flatnonzero(~trains)


def tested(embeddings: Tensor, labels: Tensor) -> tuple[float, float]:
    """Recall@1 and MAP@R over all items, in percent."""
    names = ["precision_at_1", "mean_average_precision_at_r"]
    calculator = RetrievalAccuracyCalculator(names, k="max_bin_count", device=torch.device("cpu"))
    found = calculator.evaluate(torch.nn.functional.normalize(embeddings), labels).accuracies
    recall, precision = (100 * float(found[name]) for name in names)
    return recall, precision


def behind(vectors: Vectors, seed: int) -> dict[str, tuple[float, float]] | None:
    """How far each rule's choice is below the better baseline."""
    train, test = divided(vectors, seed)
    size = vectors.features.shape[1]
    features = coordinates(vectors.features[train])
    labels = torch.from_numpy(vectors.labels)
    folds = folds_of(vectors.labels[train], vectors.shared, seed)
    if folds is None:
        return None
    scored = []
    results = []
    for form in CLOSED_FORMS:
        by_fold = []
        for fold in folds.parts:
            layer = form.fit(features[fold.fitted], labels[train][fold.fitted], size=size)
            with torch.no_grad():
                by_fold.append(scores_of(layer(features[fold.held_out]), labels[train][fold.held_out]))
        scored.append(Scored(form, by_fold))  # type: ignore[arg-type]  # the rules look at the scores
        layer = form.fit(vectors.features[train], labels[train])
        with torch.no_grad():
            results.append(tested(layer(vectors.features[test]), labels[test]))
    recall, precision = (max(results[number][metric] for number in BASELINES) for metric in (0, 1))
    found = {}
    for rule, choose in RULES.items():
        taken = next(place for place, each in enumerate(scored) if each is choose(scored))
        found[rule] = (max(0.0, recall - results[taken][0]), max(0.0, precision - results[taken][1]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=Path, nargs="*", default=[], help="files with embeddings and labels, .npz")
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    by_data: dict[str, list[dict[str, tuple[float, float]]]] = {}
    for seed in range(given.seeds):
        everything = [*from_scikit_learn(), *made_up()]
        for path in given.vectors:
            everything += from_file(path, seed)
        for vectors in everything:
            found = behind(vectors, seed)
            if found is not None:
                by_data.setdefault(vectors.name, []).append(found)

    for name, runs in by_data.items():
        summary = _summary([run[FITS] for run in runs])
        print(f"{name}: {summary}")
    print(f"\nAll of them, {given.seeds} divisions of each")
    for rule in RULES:
        print(f"{rule}: {_summary([run[rule] for found in by_data.values() for run in found])}")


def _summary(runs: Sequence[tuple[float, float]]) -> str:
    failed = sum(max(run) > TOLERATED for run in runs)
    mean_recall, mean_precision = np.mean(runs, axis=0)
    most_recall, most_precision = np.max(runs, axis=0)
    return (
        f"more than {TOLERATED} below in {failed} of {len(runs)}; mean {mean_recall:.2f} / {mean_precision:.2f}, most "
        f"{most_recall:.1f} / {most_precision:.1f}"
    )


if __name__ == "__main__":
    main()
