"""A made-up file of vectors."""

import numpy as np


def file_of(place, classes=4, each=10, size=6, **more):
    """Write vectors of some classes, and columns, as an archive of numpy; return its path."""
    labels = np.repeat([f"class {number}" for number in range(classes)], each)
    np.savez(
        place / "mine.npz", embeddings=np.random.default_rng(0).normal(size=(len(labels), size)), labels=labels, **more
    )
    return place / "mine.npz"
