"""The rows of a collection: their checksums, the files of a state, and images in shards."""

import zlib

import numpy as np
import pytest

from pml_ext_search.state import Index, State, crc_of, in_shard, state_of


def test_a_state_is_read_as_it_was_written_or_is_damaged():
    state = State(run="run", identity="1" * 16, size=64, vectors=5)
    text = state.model_dump_json()
    assert state_of(text, zlib.crc32(text.encode())) == state
    with pytest.raises(ValueError, match="its checksum does not fit"):
        state_of(text.replace("64", "65"), zlib.crc32(text.encode()))


def test_files_that_were_written_are_known_until_they_are_deleted():
    state = State(run="run", identity="1" * 16, size=64, files=("vectors-2.f32",))
    assert state.used_files == {"vectors.f32"}
    searched = state.model_copy(update={"index": Index(folder="/photos", images=3, first=0, file="search-1.faiss")})
    assert searched.used_files == {"vectors.f32", "search-1.faiss"}
    assert searched.own_files == {"vectors.f32", "vectors-2.f32", "search-1.faiss"}


def test_the_checksum_of_a_row_is_of_its_values_and_its_vector():
    vector = np.arange(4, dtype=np.float32)
    known = crc_of(vector.data, 3, b"a.png")
    assert known == crc_of(vector.copy().data, 3, b"a.png")
    assert len({known, crc_of(vector.data, 4, b"a.png"), crc_of((vector + 1).data, 3, b"a.png")}) == 3


@pytest.mark.parametrize(
    ("path", "shard"), [("a/1.png", "a/1.png"), ("x.tar/a/1.png", "x.tar"), ("b/x.tar/1.png", "b/x.tar")]
)
def test_an_image_in_a_shard_is_in_the_shards_file(path, shard):
    assert in_shard(path) == shard
