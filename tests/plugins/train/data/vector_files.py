"""Contents of files of vectors, and such a file."""

import numpy as np

LABELS = ["cat", "dog", "cat", "dog", "owl", "owl", "owl", "cat"]


PARTS = ["train", "train", "train", "train", "test", "test", "test", "test"]


def columns(**changes):
    rows = np.arange(24, dtype=np.float32).reshape(8, 3)
    return {"embeddings": rows, "labels": np.array(LABELS)} | changes


ROWS = columns()["embeddings"]


def npz(place, **changes):
    kept = {name: column for name, column in columns(**changes).items() if column is not None}
    np.savez(place / "mine.npz", **kept)
    return place / "mine.npz"


def file_of(place, classes=4, each=10, size=6, **more):
    """Write vectors of some classes, and columns, as an archive of numpy; return its path."""
    labels = np.repeat([f"class {number}" for number in range(classes)], each)
    rows = np.random.default_rng(0).normal(size=(len(labels), size))
    np.savez(place / "mine.npz", embeddings=rows, labels=labels, **more)
    return place / "mine.npz"
