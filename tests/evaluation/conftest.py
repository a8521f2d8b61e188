"""A search that can be watched."""

import pytest

from pml_ext.evaluation import NearestNeighbors, default_neighbors


class Watched(NearestNeighbors):
    """The default search, which notes how many queries and neighbors it is asked for."""

    def __init__(self):
        super().__init__(self.noted)
        self.asked = []

    def noted(self, query, k, reference):
        self.asked.append((len(query), k))
        return default_neighbors().search(query, k, reference)


@pytest.fixture
def watched() -> Watched:
    return Watched()
