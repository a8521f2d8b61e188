"""Embeddings of a folder as an ``.npz`` file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pml_ext.tool import write_atomically

from .embedded import Embedded


def save_embeddings(embedded: Embedded, path: Path) -> None:
    """Write embeddings, paths and classes to an ``.npz`` file."""
    points = embedded.embeddings.cpu().numpy()
    paths = np.array(embedded.paths)
    classes = np.array(embedded.classes)

    def save(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.savez(file, embeddings=points, paths=paths, classes=classes)

    write_atomically(path, save)
