"""Embedded images and vectors: their classes, and the checksums that a store keeps."""

from pathlib import Path

import numpy as np
import torch

from pml_ext_search.class_folders import ClassFolders
from pml_ext_search.embedded import Embedded, save_embeddings
from pml_ext_search.state import crc_of

POINTS = torch.eye(3)


def test_classes_are_those_of_folders_or_of_the_file():
    paths = ["cats/1.png", "dogs/2.png", "3.png"]
    images = Embedded(Path("/photos"), paths, POINTS, class_folders=ClassFolders.of_paths(paths, 1))
    assert images.classes == ["cats", "dogs", ""]
    vectors = Embedded(
        Path("mine.npz"), ["a", "b", "c"], POINTS, class_numbers=np.array([1, 0, 1]), class_names=("x", "y")
    )
    assert vectors.classes == ["y", "x", "y"]


def test_a_checksum_is_of_everything_that_a_store_has_of_an_image():
    stats = np.array([[10, 1], [20, 2], [30, 3]])
    ids = np.array([4, 5, 6])
    images = Embedded(Path("/photos"), ["a/1.png", "a/2.png", "b/3.png"], POINTS, stats=stats, ids=ids)
    wanted = crc_of(POINTS[1].numpy().data, 5, b"a/2.png", images.classes[1], 20, 2)
    assert images.checksums[1] == wanted
    assert len(set(images.checksums.tolist())) == 3


def test_a_file_has_the_embeddings_paths_and_classes(tmp_path):
    paths = ["cats/1.png", "dogs/2.png", "3.png"]
    images = Embedded(Path("/photos"), paths, POINTS, class_folders=ClassFolders.of_paths(paths, 1))
    save_embeddings(images, tmp_path / "all.npz")
    with np.load(tmp_path / "all.npz") as saved:
        assert saved["embeddings"].tolist() == POINTS.tolist()
        assert saved["paths"].tolist() == paths
        assert saved["classes"].tolist() == ["cats", "dogs", ""]
