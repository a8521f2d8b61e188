"""Made-up rows, and stores of them."""

import itertools

import numpy as np

from pml_ext import registry
from pml_ext.plugin import Rows

table = map("test_{}".format, itertools.count())


def rows(count, seed=0, first=0):
    points = np.random.default_rng(seed).standard_normal((count, 8)).astype(np.float32)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    ids = np.arange(first, first + count)
    classes = [("cats", 'd\'or "é"', "")[id % 3] for id in ids]
    return Rows(
        ids, ids * 7 + seed, [f"{name}/{id}.jpg" for id, name in zip(ids, classes, strict=True)], classes, points
    )


def opened(address, title=None):
    scheme, _, place = address.partition(":")
    return registry.factory("store", scheme)(place, title or next(table), 8)
