"""The rows of a collection: their checksums, the files of a state, and images in shards."""

import pytest

from pml_ext_search.collection.state import in_shard


@pytest.mark.parametrize(
    ("path", "shard"), [("a/1.png", "a/1.png"), ("x.tar/a/1.png", "x.tar"), ("b/x.tar/1.png", "b/x.tar")]
)
def test_an_image_in_a_shard_names_it(path, shard):
    assert in_shard(path) == shard
