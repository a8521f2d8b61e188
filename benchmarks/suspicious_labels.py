"""Wrong labels among the first images of ``pml-ext labels``, beside a vote of scikit-learn's nearest neighbors.

``python -m benchmarks.suspicious_labels [FILE.npz]``: 600 of scikit-learn's digits, or vectors with ``labels``,
whitened within their (partly wrong) classes. 5 % of the labels are made wrong, in three draws.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.neighbors import NearestNeighbors

from pml_ext import WithinClassWhitening
from pml_ext_search.collection.embedded import Embedded
from pml_ext_search.select.suspicious_labels import suspicious_labels

SHARE = 0.05


def main() -> None:
    """Print the precision among as many images as labels are wrong, at most 200."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path)
    file = parser.parse_args().file
    for seed in range(3):
        random = np.random.default_rng(seed)
        points, labels = _digits(random) if file is None else _vectors(file)
        wrong = random.permutation(len(labels))[: round(SHARE * len(labels))]
        noisy = labels.copy()
        noisy[wrong] = (labels[wrong] + random.integers(1, labels.max() + 1, len(wrong))) % (labels.max() + 1)
        embedded = torch.nn.functional.normalize(_whitened(points, noisy))
        first = min(200, len(wrong))
        ours = _ours(embedded, noisy)[:first]
        vote = _vote(embedded.numpy(), noisy)[:first]
        print(
            f"seed {seed}: of the first {first} of {len(labels)}, wrong: {np.isin(ours, wrong).mean():.1%} by labels, "
            f"{np.isin(vote, wrong).mean():.1%} by a vote of 5 neighbors"
        )


def _digits(random: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    data = load_digits()
    rows = random.permutation(len(data.target))[:600]
    return data.data[rows].astype(np.float32), data.target[rows]


def _vectors(file: Path) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    with np.load(file) as arrays:
        _, labels = np.unique(arrays["labels"], return_inverse=True)
        return arrays["embeddings"].astype(np.float32), labels


def _whitened(points: NDArray[np.float32], labels: NDArray[np.int64]) -> torch.Tensor:
    vectors = torch.from_numpy(points)
    with torch.no_grad():
        return WithinClassWhitening().fit(vectors, torch.from_numpy(labels))(vectors)


def _ours(points: torch.Tensor, labels: NDArray[np.int64]) -> NDArray[np.int64]:
    names = tuple(str(number) for number in range(labels.max() + 1))
    rows = [str(row) for row in range(len(labels))]
    embedded = Embedded(Path("vectors"), rows, points, class_numbers=labels, class_names=names)
    return np.array(suspicious_labels(embedded).rows)


def _vote(points: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows by the share of their five nearest neighbors of another class than their own, most votes first."""
    _, nearest = NearestNeighbors(n_neighbors=6).fit(points).kneighbors()
    votes = np.zeros((len(labels), labels.max() + 1))
    np.add.at(votes, (np.arange(len(labels))[:, None], labels[nearest[:, :5]]), 1)
    own = votes[np.arange(len(labels)), labels]
    votes[np.arange(len(labels)), labels] = 0
    return np.argsort(own - votes.max(1), kind="stable")


if __name__ == "__main__":
    main()
