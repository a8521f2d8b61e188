"""Embedded images and vectors: their classes, and the checksums that a store keeps."""

from pathlib import Path

import numpy as np
import torch

from pml_ext_search.collection.embedded import Embedded
from pml_ext_search.collection.state import crc_of

POINTS = torch.eye(3)


def test_a_checksum_covers_all_that_stores_keep():
    stats = np.array([[10, 1], [20, 2], [30, 3]])
    ids = np.array([4, 5, 6])
    images = Embedded(Path("/photos"), ["a/1.png", "a/2.png", "b/3.png"], POINTS, stats=stats, ids=ids)
    wanted = crc_of(POINTS[1].numpy().data, 5, b"a/2.png", images.classes[1], 20, 2)
    assert images.checksums[1] == wanted
    assert len(set(images.checksums.tolist())) == 3
